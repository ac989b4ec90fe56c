"""How mtkd writes large outputs: corpora, knowledge stores, cached logits and question generators.

`output_directory` decides who may write a directory: one lock, one marker file, foreign files are refused.
`sharded_output` writes planned shards, each whole or absent, and knows which are missing after an
interruption. What a shard's file looks like is a small format object: `parquet_shards` or
`safetensors_shards`. `distributed` describes the processes that share the work.
"""
