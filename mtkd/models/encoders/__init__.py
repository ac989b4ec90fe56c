"""One module per kind of encoder, and the registry that builds them from settings."""
