"""Pipelines: a TOML file names the steps of a whole job, each a command of mtkd (docs/pipelines.md)."""
