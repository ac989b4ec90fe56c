"""Questions about plain paragraphs, written by a T5 (WaLDORf, section II-iv)."""
