"""Filtering a corpus of questions to those a teacher can answer, and adding unanswerable ones."""
