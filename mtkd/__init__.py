"""mtkd: distil large language-understanding models into small fast ones, many tasks at once."""

__version__ = "0.1.0"
