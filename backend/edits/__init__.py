"""Edits of a model: which there are, and one from its JSON."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any, get_type_hints

from backend.edits import kinds
from backend.edits.changes import Changes, applied
from backend.edits.edit import Edit, Saved, Subject
from backend.errors import Refusal

__all__ = ["Changes", "Edit", "Saved", "Subject", "applied", "edit_from", "edit_kinds"]


@cache
def edit_kinds() -> Mapping[str, type[Edit]]:
    """Every edit by its kind, which is the name of its file."""
    found: dict[str, type[Edit]] = {}
    for name in sorted(module.name for module in pkgutil.iter_modules(kinds.__path__)):
        module = importlib.import_module(f"{kinds.__name__}.{name}")
        [found[name]] = [
            each
            for own, each in inspect.getmembers(module, inspect.isclass)
            if issubclass(each, Edit) and each.__module__ == module.__name__ and not own.startswith("_")
        ]
    return found


def edit_from(spec: Mapping[str, Any]) -> Edit:
    """The edit of this spec, `{"kind": ..., ...}`.

    Raises:
        Refusal: If there is no such kind, or its fields are not these.
    """
    known = edit_kinds()
    kind = known.get(str(spec.get("kind")))
    if kind is None:
        raise Refusal(f"There is no edit {spec.get('kind')!r}; known: {', '.join(known)}.", known=list(known))
    given = {name: value for name, value in spec.items() if name != "kind"}
    wanted = [field.name for field in fields(kind)]
    if set(given) != set(wanted):
        raise Refusal(
            f"The edit {kind.kind!r} takes {', '.join(wanted)}; it was given {', '.join(sorted(given)) or 'nothing'}.",
            known=wanted,
        )
    hints = get_type_hints(kind)
    return kind(**{name: _typed(kind.kind, name, value, hints[name]) for name, value in given.items()})


def _typed(kind: str, name: str, value: Any, wanted: Any) -> Any:
    if wanted is str and isinstance(value, str | int) and not isinstance(value, bool):
        return str(value)  # a layer's label is a word that looks like a number
    if wanted is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if wanted not in (str, int) and isinstance(value, list | tuple) and all(map(_numbers, value)):
        return tuple(tuple(row) for row in value)
    said = {str: "a name", int: "a whole number"}.get(wanted, "a list of lists of whole numbers")
    raise Refusal(f"{name} of the edit {kind!r} must be {said}; it is {value!r}.")


def _numbers(row: Any) -> bool:
    return isinstance(row, list | tuple) and all(isinstance(n, int) and not isinstance(n, bool) for n in row)
