"""Raw records from CSV, JSONL and TXT, one at a time: nothing here holds more of a file than the record in hand.

A record that cannot even be read comes as a `Problem`; the rest of the file is read on.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from backend.errors import Refusal
from backend.prompts.report import Problem

Fields = Mapping[str, Any]
Record = tuple[int, Fields | Problem]

DELIMITERS = (",", ";", "\t")

# A field may be as long as the file: the limit on a prompt's length is told by name, not by the csv module.
csv.field_size_limit(1 << 30)


@dataclass
class Lines:
    """The lines of a file as text; bytes that are no UTF-8 become lone surrogates, their offsets stand in `broken`."""

    file: BinaryIO
    number: int = 0
    broken: list[int] = field(default_factory=list)
    _offset: int = 0

    def __iter__(self) -> Iterator[str]:
        for raw in self.file:
            self.number += 1
            start, self._offset = self._offset, self._offset + len(raw)
            try:
                yield raw.decode("utf-8")
            except UnicodeDecodeError as error:
                self.broken.append(start + error.start)
                yield raw.decode("utf-8", "surrogateescape")

    def take_broken(self, row: int) -> Problem | None:
        """The problem of the record just read, if it held bytes that are no UTF-8."""
        if not self.broken:
            return None
        offset, self.broken = self.broken[0], []
        message = f"Byte {offset:,} of the file is no UTF-8; save the file as UTF-8."
        return Problem(row, "file", "refused", message)


def text_records(lines: Lines) -> Iterator[Record]:
    """One prompt a line; blank lines are skipped."""
    for line in lines:
        text = line.rstrip("\r\n")
        broken = lines.take_broken(lines.number)
        if text.strip():
            yield lines.number, broken or {"text": text}


def json_records(lines: Lines) -> Iterator[Record]:
    """One JSON object a line; blank lines are skipped."""
    for line in lines:
        row = lines.number
        if broken := lines.take_broken(row):
            yield row, broken
        elif line.strip():
            yield row, _json_record(row, line)


def _json_record(row: int, line: str) -> Fields | Problem:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        if row == 1 and line.lstrip().startswith("["):
            raise Refusal(
                "This is one JSON list; JSONL has one object a line (`jq -c '.[]' file.json` writes that)."
            ) from error
        reason = (
            f"{error.msg} at character {error.pos + 1}"
            if isinstance(error, json.JSONDecodeError)
            else "it cannot be parsed"
        )
        return Problem(row, "row", "refused", f'The line is not JSON ({reason}); it must read {{"text": "..."}}.')
    if not isinstance(record, dict):
        if row == 1 and isinstance(record, list):
            raise Refusal("This is a JSON list; JSONL has one object a line (`jq -c '.[]' file.json` writes that).")
        return Problem(
            row, "row", "refused", f'The line is a JSON {_kind(record)}; it must be an object: {{"text": "..."}}.'
        )
    return record


def _kind(value: Any) -> str:
    return {str: "string", list: "list", bool: "truth value", type(None): "null"}.get(type(value), "number")


def csv_records(lines: Lines) -> Iterator[Record]:
    """Rows under a header with a `text` column; the header is row 1, as a spreadsheet counts."""
    source = iter(lines)
    first = next((line for line in source if line.strip()), "")
    if lines.broken:
        raise Refusal(f"Byte {lines.broken[0]:,} of the file, in its header, is no UTF-8; save the file as UTF-8.")
    delimiter, header = _header(first)
    reader = csv.reader(source, delimiter=delimiter, strict=True)
    row = 1
    while True:
        row += 1
        start = lines.number + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            lines.broken = []
            yield row, Problem(row, "row", "refused", _csv_problem(error, start, lines.number))
            continue
        broken = lines.take_broken(row)
        if any(cell.strip() for cell in cells):
            yield row, broken or _csv_record(row, cells, header)


def _csv_record(row: int, cells: list[str], header: list[str]) -> Fields | Problem:
    if len(cells) > len(header):
        seen = f"The row has {len(cells)} cells, the header {len(header)}"
        message = f"{seen}; a text that holds the delimiter must stand in quotes."
        return Problem(row, "row", "refused", message)
    return dict(zip(header, cells, strict=False))


def _csv_problem(error: csv.Error, start: int, end: int) -> str:
    if "unexpected end" in str(error):
        return f"A quote opened in line {start} is never closed; all from there to line {end}, the last, stands in it."
    return f'Line {start} is no CSV ({error}); a quote inside a quoted text is written twice ("").'


def _header(line: str) -> tuple[str, list[str]]:
    readings = []
    for delimiter in DELIMITERS:
        try:
            names = [name.strip().casefold() for name in next(csv.reader([line], delimiter=delimiter, strict=True), [])]
        except csv.Error:
            continue
        readings.append((delimiter, names))
    # The delimiter that shows a `text` column; among several, the one that makes most columns.
    readings.sort(key=lambda reading: ("text" in reading[1], len(reading[1])), reverse=True)
    if not readings:
        raise Refusal("The first line is no CSV header: a quote in it is never closed.")
    delimiter, names = readings[0]
    if names.count("text") != 1:
        seen = ", ".join(repr(name[:40]) for name in names[:20])
        count = "no `text` column" if "text" not in names else "more than one `text` column"
        raise Refusal(
            f"The file has {count}; its first line names {seen}. Name one column `text` (beside it `id` and `category` "
            "may stand)."
        )
    return delimiter, names
