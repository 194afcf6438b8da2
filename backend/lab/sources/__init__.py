"""One module a text source; each returns a `Source` and knows nothing of the others."""
