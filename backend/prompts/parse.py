"""From an uploaded file to prompts: every row is kept, mended or refused by itself, and says so."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import BinaryIO

from backend.errors import Refusal, TooLarge
from backend.prompts.check import Checker
from backend.prompts.records import Lines, Record, csv_records, json_records, text_records
from backend.prompts.report import Problem, Report

MOST_ROWS = 20_000
UPLOAD_CAP = 64 << 20

FORMATS: dict[str, tuple[str, Callable[[Lines], Iterator[Record]]]] = {
    ".csv": ("csv", csv_records),
    ".tsv": ("csv", csv_records),
    ".jsonl": ("jsonl", json_records),
    ".ndjson": ("jsonl", json_records),
    ".json": ("jsonl", json_records),
    ".txt": ("txt", text_records),
}

_BOM = b"\xef\xbb\xbf"
_WIDE = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
_BINARY = {
    b"PK\x03\x04": "a ZIP or Excel file",
    b"%PDF": "a PDF",
    b"\x89PNG": "an image",
    b"\x1f\x8b": "a gzip file",
    b"PAR1": "Parquet",
}


def parse(source: bytes | BinaryIO, filename: str, cap: int = UPLOAD_CAP) -> Report:
    """Read a file of prompts, of which at most the record in hand is held beside the prompts kept.

    Args:
        source: The bytes, or a seekable binary file.
        filename: Its ending decides the format; its stem is the name of the set.
        cap: The most bytes.

    Returns:
        The report, with the prompts that passed.

    Raises:
        Refusal: The file as a whole cannot be used: empty, no known format, no `text` column, no good row.
        TooLarge: More bytes or rows than allowed.
    """
    file = io.BytesIO(source) if isinstance(source, bytes) else source
    size = file.seek(0, io.SEEK_END)
    if size > cap:
        raise too_large(filename, cap)
    start = _start(file, filename)
    kind, records = _format(filename)
    report = Report(set_name(PurePath(filename).stem), kind)
    if start:
        report.note(Problem(1, "file", "mended", "The file starts with a byte-order mark, which was taken away."))
    checker = Checker(report)
    for row, record in records(Lines(file, _offset=start)):
        checker.take(row, record)
        if report.states.total() > MOST_ROWS:
            raise TooLarge(f"{filename} holds more than {MOST_ROWS:,} rows, the most a prompt set may have; split it.")
    if not report.prompts:
        reasons = "; ".join(f"row {p.row}: {p.message}" for p in report.problems if p.severity == "refused")
        raise Refusal(f"{filename} holds no row that can be used. {reasons[:600]}".strip())
    return report


def too_large(filename: str, cap: int) -> TooLarge:
    """The refusal of a file above the cap."""
    return TooLarge(
        f"{filename} has more than {cap:,} bytes ({cap / (1 << 20):g} MiB), the most an upload may have; split it."
    )


def set_name(text: str) -> str:
    """A name that may stand in an address, made from any text; `prompts` if nothing of it remains."""
    return re.sub(r"[^\w.-]+", "-", text).strip("-.")[:80] or "prompts"


def check_name(name: str, of: str = "a prompt set") -> str:
    """The name as given; raises `Refusal` if it may not stand in an address."""
    if set_name(name) != name:
        raise Refusal(
            f"{name!r} is no name for {of}: letters, digits, '-', '_' and '.' only, 80 at most, "
            f"e.g. {set_name(name)!r}."
        )
    return name


def _start(file: BinaryIO, filename: str) -> int:
    """Move to the first byte of text; returns how many bytes were passed over."""
    file.seek(0)
    head = file.read(4096)
    if not head.removeprefix(_BOM).strip():
        file.seek(0)
        if not any(chunk.removeprefix(_BOM).strip() for chunk in iter(lambda: file.read(1 << 20), b"")):
            raise Refusal(f"{filename} is empty; it needs at least one prompt.")
    for magic, kind in _BINARY.items():
        if head.startswith(magic):
            raise Refusal(f"{filename} is {kind}; prompts come as CSV, JSONL or TXT in UTF-8.")
    if head[:2] in _WIDE:
        raise Refusal(f"{filename} is {_WIDE[head[:2]]} (byte 0 is no UTF-8); save it as UTF-8.")
    start = len(_BOM) if head.startswith(_BOM) else 0
    file.seek(start)
    return start


def _format(filename: str) -> tuple[str, Callable[[Lines], Iterator[Record]]]:
    ending = PurePath(filename).suffix.lower()
    if ending not in FORMATS:
        known = sorted(FORMATS)
        raise Refusal(f"{filename!r} ends in {ending or 'nothing'!r}; known: {', '.join(known)}.", known=known)
    return FORMATS[ending]
