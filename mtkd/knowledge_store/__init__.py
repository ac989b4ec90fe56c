"""The knowledge store: a teacher's outputs for every training row, saved on disk for any number of students.

DIR/manifest.json                      the description of the store; written last
DIR/teacher/                           the teacher's description and tokeniser, without weights
DIR/rows/<task>.parquet                the rows in the order of the store (`row`, `uid`, `digest`)
DIR/shards/<task>-00000.safetensors    the outputs (see `mtkd.knowledge_store.contents`)
"""
