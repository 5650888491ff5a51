"""Several runs by one command: seeds, and grids of settings."""
