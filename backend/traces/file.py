"""A file to import, looked at without trusting it: what kind it is, its JSON, arrays and columns; never a pickle."""

from __future__ import annotations

import json
import zipfile
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from backend.errors import NotFound, Refusal, TooLarge

PICKLED = (".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".bin", ".joblib")
MOST_JSON = 1 << 30
_LINES = (".jsonl", ".ndjson")


class File:
    """One file or folder. Every reader refuses what is damaged, with the name of the file in the sentence."""

    def __init__(self, path: Path):
        if not path.exists():
            raise NotFound(f"There is no file {path}.")
        self.path, self.name, self.suffix = path, path.name, path.suffix.lower()
        self._refuse_pickles()

    @cached_property
    def head(self) -> bytes:
        """The first bytes; none of a folder."""
        if self.path.is_dir():
            return b""
        with self.path.open("rb") as file:
            return file.read(8)

    @cached_property
    def json(self) -> Any:
        """What the JSON says, a list of objects for one object a line; None for a file that is none."""
        if self.suffix not in (".json", *_LINES):
            return None
        if self.path.stat().st_size > MOST_JSON:
            raise TooLarge(f"{self.name} has more than {MOST_JSON:,} bytes of JSON; write the routes as Parquet.")
        try:
            text = self.path.read_text("utf-8-sig")
        except UnicodeDecodeError as error:
            raise Refusal(f"{self.name} is no UTF-8 (byte {error.start}).") from error
        if self.suffix == ".json":
            try:
                return json.loads(text)
            except RecursionError as error:
                raise Refusal(f"{self.name} is nested too deeply to be counts or routes.") from error
            except ValueError as error:
                raise Refusal(f"{self.name} is not whole JSON: {error}. Was it cut short?") from error
        return [self._line(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Names of a Parquet file's columns; none of any other file."""
        if self.suffix != ".parquet" and self.head[:4] != b"PAR1":
            return ()
        return tuple(self.schema.names)

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of a Parquet file."""
        try:
            return pyarrow.parquet.read_schema(self.path)
        except (pa.ArrowInvalid, OSError) as error:
            raise Refusal(f"{self.name} is no whole Parquet file: {str(error).splitlines()[0]}") from error

    def table(self, columns: list[str]) -> pa.Table:
        """These columns of a Parquet file."""
        try:
            return pyarrow.parquet.ParquetFile(self.path).read(columns=columns)
        except (pa.ArrowInvalid, OSError) as error:
            raise Refusal(f"{self.name} is no whole Parquet file: {str(error).splitlines()[0]}") from error

    def values(self, column: str) -> int:
        """How many numbers a Parquet column of lists holds, by the file's own account; 0 where there is none."""
        try:
            about = pyarrow.parquet.read_metadata(self.path)
        except (pa.ArrowInvalid, OSError) as error:
            raise Refusal(f"{self.name} is no whole Parquet file: {str(error).splitlines()[0]}") from error
        chunks = [about.row_group(g).column(c) for g in range(about.num_row_groups) for c in range(about.num_columns)]
        return sum(chunk.num_values for chunk in chunks if chunk.path_in_schema.split(".")[0] == column)

    @cached_property
    def array(self) -> np.ndarray | None:
        """The array of a .npy file, or of nested JSON lists of numbers; None where there is none."""
        if self.suffix == ".npy":
            try:
                # Mapped: an array larger than memory is refused by its shape, not by the machine.
                return np.load(self.path, allow_pickle=False, mmap_mode="r")
            except (ValueError, OSError, EOFError) as error:
                raise _bad_array(self.name, error) from error
        if isinstance(self.json, list) and self.json and isinstance(self.json[0], list):
            return numbers(self.json, self.name, "the list")
        return None

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays of a .npz file by name; none of any other file."""
        if self.suffix != ".npz":
            return {}
        try:
            # Opened here: numpy leaves the file open where it turns out to be no archive.
            with self.path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                return {name: self._member(archive, name) for name in archive.files}
        except (ValueError, OSError, EOFError, AttributeError, zipfile.BadZipFile) as error:
            if isinstance(error, Refusal):
                raise
            raise _bad_array(self.name, error) from error

    def _member(self, archive: Any, name: str) -> np.ndarray:
        try:
            found = archive[name]
        except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise _bad_array(f"{self.name}, array {name!r}", error) from error
        if not isinstance(found, np.ndarray):
            raise Refusal(f"{self.name}: {name!r} is no array, and nothing else of an archive is opened.")
        return found

    def _line(self, number: int, line: str) -> Any:
        try:
            return json.loads(line)
        except ValueError as error:
            raise Refusal(f"{self.name}, line {number} is no JSON: {error}. Was it cut short?") from error

    def _refuse_pickles(self) -> None:
        if self.suffix in PICKLED or self.head[:1] == b"\x80":
            raise Refusal(
                f"{self.name} is a pickle, which runs code when it is opened, so it never is. Where you trust it, "
                "write its arrays as .npz: numpy.savez('routes.npz', **arrays), read with torch.load(FILE, "
                "weights_only=True)."
            )


def numbers(value: Any, where: str, field: str) -> np.ndarray:
    """Nested lists as an array of numbers; raises `Refusal` naming the field for ragged lists and anything else."""
    try:
        found = np.asarray(value)
    except (ValueError, OverflowError) as error:
        raise Refusal(f"{where}: {field} is ragged: its rows have different lengths.") from error
    if found.dtype.kind not in "iuf":
        raise Refusal(f"{where}: {field} holds something that is no number; it must be nested lists of numbers.")
    return found


def integers(array: np.ndarray, where: str, field: str) -> np.ndarray:
    """The array as int64; raises `Refusal` with the first entry that is NaN, infinite or not whole."""
    if array.dtype.kind in "iu":
        if array.dtype.kind == "u" and array.size and int(array.max()) > np.iinfo(np.int64).max:
            raise Refusal(f"{where}: {field} holds {int(array.max())}, more than any count.")
        return np.asarray(array, dtype=np.int64)
    if array.dtype.kind != "f":
        raise Refusal(f"{where}: {field} is {array.dtype}; it must hold whole numbers.")
    wrong = ~np.isfinite(array) | (array != np.round(array)) | (np.abs(array) > 2.0**62)
    if wrong.any():
        place = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise Refusal(f"{where}: {field}{list(place)} is {float(array[place])}; it must be a whole number.")
    return array.astype(np.int64)


def _bad_array(where: str, error: Exception) -> Refusal:
    if any(word in str(error).lower() for word in ("pickle", "objects")):
        return Refusal(f"{where} holds Python objects (a pickle), which are never opened; save plain numbers instead.")
    return Refusal(f"{where} is no whole NumPy file: {error}. Was it cut short?")
