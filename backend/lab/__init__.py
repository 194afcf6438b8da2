"""What the lab needs of the world: corpus, training loop, grid, shipped runs, files."""
