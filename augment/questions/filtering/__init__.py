"""From a corpus of questions to the ones a teacher can answer, and some that nobody can."""
