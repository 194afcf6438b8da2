"""One file per measure; the file is its registration."""
