"""Models: an encoder with one head per task, its files, and the initialisation and pruning of students."""
