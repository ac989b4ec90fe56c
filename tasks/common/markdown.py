"""Tables in Markdown."""

from __future__ import annotations


def markdown_cell(text: str) -> str:
    """Text for a cell of a Markdown table, in which `|` ends the cell."""
    return text.replace("|", "\\|")
