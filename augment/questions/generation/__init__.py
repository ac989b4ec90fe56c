"""From paragraphs to a corpus of questions."""
