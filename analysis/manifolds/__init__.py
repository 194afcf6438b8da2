"""The few operations used on spaces that are not flat, each with its law."""
