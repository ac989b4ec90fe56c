"""Where rows come from, and the rows of a split in memory or in mapped files."""
