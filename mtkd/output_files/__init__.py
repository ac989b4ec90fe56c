"""Writing outputs: runs, corpora, knowledge stores, cached logits and question generators.

`output_directory` controls access to a directory: it holds a lock and rejects directories with other files.
`sharded_output` writes planned shards atomically and finds the missing ones after an interruption. The file
format of the shards is a separate object, in `parquet_shards` or `safetensors_shards`. `distributed`
describes the processes of a distributed job, and `worker_pools` starts processes that make shards.
`remote_paths` lets outputs and inputs be URLs, and `path_overlap` protects inputs from being overwritten.
"""
