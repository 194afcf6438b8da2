"""One file per statistic; the file is its registration."""
