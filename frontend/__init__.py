"""Room frontend."""
