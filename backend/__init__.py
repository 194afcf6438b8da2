"""Room backend."""
