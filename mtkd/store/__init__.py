"""The knowledge store: what a teacher says of every training row, kept on disk for any number of students.

DIR/manifest.json                      what it is; written last
DIR/teacher/                           the teacher's description and tokeniser, no weights
DIR/rows/<task>.parquet                which row lies where (`row`, `uid`, `digest`), in the store's order
DIR/shards/<task>-00000.safetensors    the knowledge (`mtkd.store.contents`)
"""
