"""What a corpus is made of: counts, licences, versions, digests."""

import hashlib
import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import tokenizers

from backend.lab import prompts, vocabulary
from backend.lab.document import DOMAINS
from backend.lab.prompts import Written

if TYPE_CHECKING:
    from backend.lab.corpus import Split


@dataclass(frozen=True)
class SourceReport:
    """One source: its licence and how many documents and characters of it each use has."""

    name: str
    domain: str
    version: str
    licence: str
    documents: dict[str, int]
    characters: dict[str, int]


@dataclass(frozen=True)
class CorpusReport:
    """A corpus as built; `seconds` leaves out fetching and reading the sources."""

    seed: int
    python: str
    tokenizers: str
    sources: tuple[SourceReport, ...]
    sequences: dict[str, dict[str, int]]
    tokens: dict[str, dict[str, int]]
    characters_per_token: dict[str, float]
    prompts: dict[str, int]
    digests: dict[str, str]
    seconds: float


def make(splits: Sequence["Split"], folder: Path, seed: int, written: Written, seconds: float) -> CorpusReport:
    """Describe the corpus that lies in `folder`."""
    rows = {
        use: {domain: len(np.load(folder / f"{use}-{domain}.npy", mmap_mode="r")) for domain in DOMAINS}
        for use in ("train", "validation")
    }
    context = np.load(folder / f"train-{DOMAINS[0]}.npy", mmap_mode="r").shape[1] - 1
    tokens = {use: {domain: count * context for domain, count in counts.items()} for use, counts in rows.items()}
    characters = {
        domain: sum(len(d.text) for part in splits if part.source.domain == domain for d in part.train)
        for domain in DOMAINS
    }
    return CorpusReport(
        seed=seed,
        python=platform.python_version(),
        tokenizers=tokenizers.__version__,
        sources=tuple(_source(part) for part in splits),
        sequences=rows,
        tokens=tokens,
        characters_per_token={d: round(characters[d] / max(1, tokens["train"][d]), 3) for d in DOMAINS},
        prompts={
            "four-tasks": len(written.four_tasks),
            "four-tasks tokens": sum(prompt.tokens for prompt in written.four_tasks),
            "validation": len(written.validation),
            "validation tokens": sum(prompt.tokens for prompt in written.validation),
        },
        digests=digests(folder),
        seconds=round(seconds, 1),
    )


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a corpus, by path within the folder."""
    names = [*vocabulary.FILES, *(f"{use}-{domain}.npy" for use in ("train", "validation") for domain in DOMAINS)]
    names += [f"prompts/{name}" for name in prompts.FILES]
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}


def save(report: CorpusReport, path: Path) -> None:
    """Write the report as JSON."""
    path.write_text(json.dumps(asdict(report), indent=2) + "\n", encoding="utf-8")


def _source(part: "Split") -> SourceReport:
    uses = {"train": part.train, "validation": part.validation, "prompts": part.prompts}
    return SourceReport(
        name=part.source.name,
        domain=part.source.domain,
        version=part.source.version,
        licence=part.source.licence,
        documents={use: len(documents) for use, documents in uses.items()},
        characters={use: sum(len(document.text) for document in documents) for use, documents in uses.items()},
    )
