"""Generating a corpus of questions from paragraphs."""
