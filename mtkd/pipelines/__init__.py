"""Pipelines: a TOML file names the steps of a whole job, each an mtkd command (docs/pipelines.md)."""
