"""Token ids from disk in an order that only the seed and the data decide, never the router."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from backend.errors import NotFound, Refusal
from backend.lab.settings import CONTEXT, DOMAINS, SEQUENCES_PER_DOMAIN


class CorpusMissing(NotFound):
    """Raised when a corpus file is not there; the text names the command that builds it."""


class CorpusMisshapen(Refusal):
    """Raised when a corpus file does not hold sequences of 129 ids; the text says what it holds."""


@dataclass(frozen=True)
class TokenisedCorpus:
    """Sequences of 129 ids by domain, memory-mapped: 128 inputs and the id after each."""

    folder: Path

    def sequences(self, part: str, domain: str) -> np.ndarray:
        """All sequences of one domain; `part` is train or validation."""
        path = self.folder / f"{part}-{domain}.npy"
        if not path.is_file():
            raise CorpusMissing(f"{path} is not there; `moe-geometry lab corpus` builds it")
        ids = np.load(path, mmap_mode="r")
        if ids.ndim != 2 or ids.shape[1] != CONTEXT + 1:
            raise CorpusMisshapen(f"{path} has shape {ids.shape}; sequences of {CONTEXT + 1} ids are needed")
        return ids


def batches(corpus: TokenisedCorpus, seed: int, sequences: int = SEQUENCES_PER_DOMAIN) -> Iterator[Tensor]:
    """Endless batches of sequences of 129 ids, as many of each domain; a new shuffle each time a domain runs out."""
    streams = [_shuffled(corpus.sequences("train", domain), seed, place) for place, domain in enumerate(DOMAINS)]
    while True:
        rows = [next(stream) for stream in streams for _ in range(sequences)]
        yield torch.from_numpy(np.stack(rows).astype(np.int64))


def stored_batches(path: Path) -> Iterator[Tensor]:
    """The batches that `first-batches.npy` of a run holds: enough to retrain its start without the corpus."""
    for batch in np.load(path):
        yield torch.from_numpy(batch.astype(np.int64))


def _shuffled(ids: np.ndarray, seed: int, place: int) -> Iterator[np.ndarray]:
    epoch = 0
    while True:
        for row in np.random.default_rng([seed, place, epoch]).permutation(len(ids)):
            yield ids[row]
        epoch += 1
