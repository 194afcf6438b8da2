"""What is kept of one recorded step, and the file it lies in: records of one step add up over processes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from analysis.errors import GeometryError

SCHEMA = 1
NAME = re.compile(r"record-(\d{8})-r(\d{1,5})\.safetensors")
ADDED = {"selected", "weights", "tokens", "passes", "violation", "centroids"}
SAME = {"rows"}


class BadRecord(GeometryError):
    """Raised when bytes are no record; the text says what is wrong with them."""


@dataclass(frozen=True)
class Record:
    """Sums of one optimiser step, layer first.

    `selected` and `weights` by expert; `tokens`, `passes` (forward passes) and `violation` (the MaxVio of each pass,
    summed) by layer; `centroids` (inputs summed by expert) and `rows` (mean cosine, centred rms cosine, common-mode
    share of the router's rows) where geometry was asked for. `run` is a word that only this run of this process has.
    """

    step: int
    sums: Mapping[str, Tensor]
    run: str = ""

    def to_bytes(self, rank: int) -> bytes:
        """A safetensors file."""
        about = {"schema": SCHEMA, "step": self.step, "rank": rank, "run": self.run}
        return save({name: t.contiguous() for name, t in self.sums.items()}, {"moe-geometry": json.dumps(about)})

    def __add__(self, other: Record) -> Record:
        """The same step as two processes saw it."""
        if self.step != other.step or self.sums.keys() != other.sums.keys():
            raise BadRecord(f"records of steps {self.step} and {other.step} do not add up")
        sums = {n: t if n in SAME else t + other.sums[n] for n, t in self.sums.items()}
        return Record(self.step, sums, self.run)


def file_name(step: int, rank: int) -> str:
    """Sorts by step."""
    return f"record-{step:08d}-r{rank}.safetensors"


def read(data: bytes, name: str) -> Record:
    """The record in a file of that name.

    Raises:
        BadRecord: If it is no record, or lacks what each must have.
    """
    found = NAME.fullmatch(name)
    if not found:
        raise BadRecord(f"{name!r} is no name of a record; they are called {file_name(100, 0)}")
    try:
        sums = load(data)
    except (SafetensorError, ValueError) as error:
        raise BadRecord(f"{name}: no whole safetensors file ({error})") from error
    missing = ADDED - {"centroids"} - sums.keys()
    if missing or sums.keys() - ADDED - SAME:
        raise BadRecord(f"{name} holds {', '.join(sorted(sums))}; a record holds {', '.join(sorted(ADDED | SAME))}")
    layers = len(sums["tokens"])
    if sums["selected"].dim() != 2 or any(len(t) != layers for t in sums.values()):
        raise BadRecord(f"{name}: its sums are of different numbers of layers, or not by layer and expert")
    return Record(int(found[1]), sums, run_of(BytesIO(data), name))


def run_of(file: BinaryIO, name: str) -> str:
    """Which run a record is of, from its header; empty of one that was written before records told it.

    Raises:
        BadRecord: If its header cannot be read.
    """
    try:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        return str(json.loads(header.get("__metadata__", {}).get("moe-geometry", "{}")).get("run", ""))
    except (ValueError, AttributeError, TypeError) as error:
        raise BadRecord(f"{name}: its header does not say which run it is of ({error})") from error


def merged(files: Iterable[Path]) -> list[Record]:
    """One record a step, in order; those of several processes added up."""
    by_step: dict[int, Record] = {}
    for file in sorted(files):
        record = read(file.read_bytes(), file.name)
        by_step[record.step] = by_step[record.step] + record if record.step in by_step else record
    return [by_step[step] for step in sorted(by_step)]


def whole(sums: Mapping[str, Tensor], rows: Tensor | None) -> dict[str, Tensor]:
    """What a tally gave, without the place for experts that are none."""
    kept = {n: t[:, :-1] if n in ("selected", "weights", "centroids") else t for n, t in sums.items()}
    return kept | ({} if rows is None else {"rows": rows.to(torch.float64)})
