"""Bytes as a person reads them."""

from __future__ import annotations


def gigabytes(size: int) -> str:
    """In GB, small ones in MB."""
    return f"{size / 1e9:.1f} GB" if size >= 5e7 else f"{size / 1e6:.1f} MB"
