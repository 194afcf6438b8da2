"""Do two texts share a run of words? 13 words in a row is the usual sign that an evaluation text was seen in training.

Words are runs of letters and digits, in lower case; punctuation and line breaks do not count, so that a copy with
another layout is still a copy.
"""

import functools
import hashlib
import re
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

RUN = 13
"""Words in a row that make an overlap (Brown et al. 2020, appendix C)."""

Hashes = npt.NDArray[np.uint64]
WORD = re.compile(r"[^\W_]+")
# An odd multiplier (that of Knuth's MMIX generator): a rolling polynomial in 64 bits, exact in wrapping arithmetic.
MULTIPLIER = np.uint64(6364136223846793005)


def words(text: str) -> list[str]:
    """Return the words of a text, in lower case, in order."""
    return WORD.findall(text.lower())


@functools.lru_cache(maxsize=1_000_000)
def _word_hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "big")


def runs(text: str, length: int = RUN) -> Hashes:
    """Return one 64-bit hash for each run of `length` words, in order of appearance."""
    return runs_of(np.array([_word_hash(word) for word in words(text)], dtype=np.uint64), length)


def runs_of(items: Sequence[int] | npt.NDArray[np.uint64], length: int = RUN) -> Hashes:
    """Return one 64-bit hash for each run of `length` items (words already hashed, or token ids)."""
    values = np.asarray(items, dtype=np.uint64)
    count = len(values) - length + 1
    if count <= 0:
        return np.empty(0, dtype=np.uint64)
    result = np.zeros(count, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for offset in range(length):
            result = result * MULTIPLIER + values[offset : offset + count]
    return result


def index(texts: Iterable[str], length: int = RUN) -> Hashes:
    """Return the sorted, distinct hashes of every run of every text; runs never cross from one text to the next."""
    parts = [runs(text, length) for text in texts]
    return np.unique(np.concatenate(parts)) if parts else np.empty(0, dtype=np.uint64)


def shared(text: str, known: Hashes, length: int = RUN) -> int:
    """Return how many of a text's runs are in an index."""
    return hits(runs(text, length), known)


def hits(found: Hashes, known: Hashes) -> int:
    """Return how many hashes are in a sorted array of hashes."""
    if not len(known) or not len(found):
        return 0
    place = np.minimum(np.searchsorted(known, found), len(known) - 1)
    return int((known[place] == found).sum())
