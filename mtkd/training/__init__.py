"""The training loop, its batches, optimisers, callbacks and checkpoints, and the directories of runs."""
