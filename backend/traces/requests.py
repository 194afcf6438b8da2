"""What servers write: one JSON object a request, alone, in a list or one a line, with arrays as lists or base64."""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from backend.errors import Refusal
from backend.prompts.check import UNCATEGORISED
from backend.traces.file import File, integers, numbers

NPY = b"\x93NUMPY"


def requests(file: File) -> list[Mapping[str, Any]]:
    """The objects of a JSON file; none where it holds anything else."""
    found = file.json if isinstance(file.json, list) else [file.json]
    return found if all(isinstance(each, dict) for each in found) else []


def named(request: Mapping[str, Any], number: int) -> tuple[str, str]:
    """Id and category of a request: its own, else its place in the file."""
    name, category = request.get("id"), request.get("category")
    return str(name) if isinstance(name, str | int) else f"request-{number}", str(category or UNCATEGORISED)


def array(value: Any, where: str, field: str) -> np.ndarray:
    """Whole numbers from nested lists, an array, or the base64 of a .npy; raises `Refusal` naming the field."""
    if isinstance(value, np.ndarray):
        return integers(value, where, field)
    if isinstance(value, str):
        return integers(_npy(decoded(value, where, field), where, field), where, field)
    if not isinstance(value, list):
        raise Refusal(f"{where}: {field} is {_kind(value)}; it must be nested lists, or the base64 of a .npy file.")
    return integers(numbers(value, where, field), where, field)


def decoded(text: str, where: str, field: str) -> bytes:
    """The bytes behind base64; raises `Refusal`."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        shown = text[:12] + ("…" if len(text) > 12 else "")
        raise Refusal(f"{where}: {field} is the text {shown!r}, which is no base64 of an array.") from error


def ids(value: Any, where: str, field: str) -> np.ndarray | None:
    """A list of token ids, or None where there is none."""
    if value is None:
        return None
    found = array(value, where, field)
    if found.ndim != 1 or (found < 0).any():
        raise Refusal(f"{where}: {field} has shape {list(found.shape)}; it must be a flat list of token ids.")
    return found


def each(file: File) -> Iterator[tuple[str, str, str, Mapping[str, Any]]]:
    """Every request with where it stands, its id and its category."""
    for number, request in enumerate(requests(file)):
        name, category = named(request, number)
        yield f"{file.name}, request {number + 1}", name, category, request


def _npy(data: bytes, where: str, field: str) -> np.ndarray:
    if not data.startswith(NPY):
        raise Refusal(f"{where}: {field} is base64 of {len(data)} bytes that are no .npy, so its shape is not known.")
    try:
        return np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise Refusal(f"{where}: {field} is no whole .npy of numbers: {error}.") from error


def _kind(value: Any) -> str:
    return {dict: "an object", type(None): "null", bool: "a truth value"}.get(type(value), "a number")
