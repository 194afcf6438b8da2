"""A small stand-in for the training text that can prove, on any machine, that a prompt does not repeat it.

Of every run of 13 words the sketch keeps one stretch of 8, the one with the smallest hash (winnowing: Schleimer,
Wilkerson and Aiken 2003). A text that repeats 13 words of the training text has chosen the same stretch, so it cannot
be missed; a text that shares only those 8 words is reported too. "None found" is therefore exact, "found" is not.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from backend.lab import overlap

STRETCH = 8
WINDOW = overlap.RUN - STRETCH + 1
Sketch = npt.NDArray[np.uint32]


def stretches(text: str) -> Sketch:
    """Return the sorted, distinct hashes of the stretches that stand for a text's runs of 13 words."""
    found = overlap.runs(text, STRETCH) >> np.uint64(32)
    if len(found) < WINDOW:
        return np.empty(0, dtype=np.uint32)
    smallest = np.lib.stride_tricks.sliding_window_view(found, WINDOW).min(axis=1)
    return np.unique(smallest).astype(np.uint32)


def sketch(texts: Iterable[str]) -> Sketch:
    """Return the sketch of many texts; runs never cross from one text to the next."""
    parts = [stretches(text) for text in texts]
    return np.unique(np.concatenate(parts)) if parts else np.empty(0, dtype=np.uint32)


def may_repeat(text: str, known: Sketch) -> bool:
    """Return whether a text may share 13 words in a row with the sketched texts; False is certain."""
    return len(np.intersect1d(stretches(text), known, assume_unique=True)) > 0


def save(known: Sketch, path: Path) -> None:
    """Write a sketch; differences of sorted hashes pack to half their size."""
    np.savez_compressed(path, differences=np.diff(known, prepend=np.uint32(0)))


def load(path: Path) -> Sketch:
    """Read a sketch that `save` wrote."""
    with np.load(path) as archive:
        return np.cumsum(archive["differences"], dtype=np.uint32)
