"""One file per family whose experts the generic adapter cannot read; the file is its registration."""
