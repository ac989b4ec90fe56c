"""What all packages use: errors, files that are written atomically and checked when read, URLs, progress."""
