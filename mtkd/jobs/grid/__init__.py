"""`mtkd compare`: grids of runs, and their tables."""
