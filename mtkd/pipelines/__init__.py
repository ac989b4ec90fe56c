"""Pipelines: a TOML file lists the steps of a whole job; each is an mtkd command (docs/pipelines.md)."""
