"""The HTML report of finished runs: what the runs recorded, what follows from it, charts, and the page."""
