"""Our own routes, as `moe-geometry export routes` writes them: a row for each token, layer and chosen expert."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from backend.errors import Refusal
from backend.prompts.check import UNCATEGORISED
from backend.traces.draft import Draft
from backend.traces.file import File
from backend.traces.options import Options
from backend.traces.requests import requests
from backend.traces.routing import Tokens, routes

TITLE = "rows of prompt, position, layer and expert as .parquet or .jsonl, as `export routes` writes them"
NEEDED = ("prompt", "position", "layer", "expert")
MORE = ("role", "weight", "token", "category")
EXPERTS = b"moe_geometry.experts"
"""Where a Parquet file of ours says how many experts a layer has."""
ROLES = {"prompt": 0, "generated": 1}


def fits(file: File) -> bool:
    """The four columns that every such file has."""
    found = requests(file)
    names = found[0].keys() if found else file.columns
    return set(NEEDED) <= set(names)


def read(file: File, options: Options) -> Draft:
    """The rows of a token and layer stand in the order of its slots."""
    columns, experts = _columns(file)
    prompt, prompts = _coded(columns["prompt"])
    layer, layers = _coded(columns["layer"], _layer_order)
    position = _whole(file, columns["position"], "position")
    order = np.lexsort((layer, position, prompt))
    k = _k(file, prompt[order], position[order], layer[order], prompts, layers)
    width = len(layers) * k
    token = order[::width]

    def of_token(name: str) -> np.ndarray | None:
        return _whole(file, columns[name], name)[token] if name in columns else None

    shape = (len(token), len(layers), k)
    weight = columns.get("weight")
    parts = Tokens(
        "",
        "",
        _whole(file, columns["expert"], "expert")[order].reshape(shape),
        None if weight is None else _floats(file, weight)[order].reshape(shape),
        of_token("token"),
        position[token],
        None if "role" not in columns else _roles(file, columns["role"])[token],
    )
    categories = columns["category"] if "category" in columns else np.full(len(prompt), UNCATEGORISED)
    return routes(
        file.name,
        _by_prompt(parts, prompt[token], prompts, categories[token]),
        options,
        layers,
        experts,
        experts is not None,
    )


def _columns(file: File) -> tuple[dict[str, np.ndarray], int | None]:
    rows = requests(file)
    if not rows:
        names = [name for name in (*NEEDED, *MORE) if name in file.columns]
        if missing := set(NEEDED) - set(names):
            raise Refusal(f"{file.name} has no column {', '.join(sorted(missing))}; it has {', '.join(file.columns)}.")
        table = file.table(names)
        holed = next((name for name in names if table[name].null_count), None)
        if holed:
            raise Refusal(f"{file.name}: column {holed} has {table[holed].null_count} holes; every row needs it.")
        found = {name: table[name].to_numpy() for name in names}
        return found, _said_experts(file)
    names = [name for name in (*NEEDED, *MORE) if name in rows[0]]
    return {name: _column(file, rows, name) for name in names}, None


def _said_experts(file: File) -> int | None:
    said = (file.schema.metadata or {}).get(EXPERTS)
    if said is None:
        return None
    if not said.isdigit() or not int(said):
        raise Refusal(f"{file.name}: its {EXPERTS.decode()} is {said!r}; it must be a whole number of 1 or more.")
    return int(said)


def _column(file: File, rows: list[Mapping[str, Any]], name: str) -> np.ndarray:
    kinds = (str,) if name in ("prompt", "layer", "role", "category") else (int, float)
    found = []
    for number, row in enumerate(rows, 1):
        value = row.get(name)
        if name in ("prompt", "layer") and isinstance(value, int):
            value = str(value)
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise Refusal(
                f"{file.name}, row {number}: {name} is {value!r}; it must be {'text' if str in kinds else 'a number'}."
            )
        found.append(value)
    return np.array(found, dtype=object if str in kinds else None)


def _coded(values: np.ndarray, key: Any = None) -> tuple[np.ndarray, list[str]]:
    """Places among the names, which are in the order of first sight, or by this key."""
    texts = values.astype(str)
    names, first, code = np.unique(texts, return_index=True, return_inverse=True)
    order = first.argsort() if key is None else np.array(sorted(range(len(names)), key=lambda i: key(str(names[i]))))
    place = np.empty(len(names), dtype=np.int64)
    place[order] = np.arange(len(names))
    return place[code], [str(names[i]) for i in order]


def _layer_order(name: str) -> tuple[int, int, str]:
    return (0, int(name), "") if name.isdecimal() else (1, 0, name)


def _k(
    file: File, prompt: np.ndarray, position: np.ndarray, layer: np.ndarray, prompts: list[str], layers: list[str]
) -> int:
    """Experts a token, the same everywhere; rows are in order. A token or a layer that is not whole is named."""
    starts = np.flatnonzero(np.r_[True, (np.diff(prompt) != 0) | (np.diff(position) != 0) | (np.diff(layer) != 0)])
    sizes = np.diff(np.r_[starts, len(prompt)])
    k = int(np.bincount(sizes).argmax())

    def place(row: int) -> str:
        return f"prompt {prompts[prompt[row]]!r}, position {position[row]}"

    odd = np.flatnonzero(sizes != k)
    if len(odd):
        row = int(starts[odd[0]])
        raise Refusal(
            f"{file.name} has {sizes[odd[0]]} experts at {place(row)}, layer {layers[layer[row]]}, and {k} elsewhere. "
            "Was it cut short?"
        )
    whole = np.arange(len(starts)) % len(layers)
    wrong = np.flatnonzero(layer[starts] != whole)
    if len(wrong) or len(starts) % len(layers):
        row = int(starts[wrong[0]] if len(wrong) else starts[-1])
        raise Refusal(f"{file.name} lacks layers at or before {place(row)}; every token needs all {len(layers)}.")
    return k


def _by_prompt(parts: Tokens, prompt: np.ndarray, prompts: list[str], categories: np.ndarray) -> list[Tokens]:
    found, starts = [], np.searchsorted(prompt, np.arange(len(prompts) + 1))
    for name, first, end in zip(prompts, starts[:-1], starts[1:], strict=True):
        columns = (parts.weights, parts.token, parts.position, parts.role)
        more = (None if column is None else column[first:end] for column in columns)
        found.append(Tokens(name, str(categories[first]), parts.indices[first:end], *more))
    return found


def _whole(file: File, values: np.ndarray, name: str) -> np.ndarray:
    if values.dtype.kind in "iu":
        return values.astype(np.int64)
    if values.dtype.kind == "f":
        wrong = np.flatnonzero(~np.isfinite(values) | (values != np.round(values)))
        if not len(wrong):
            return values.astype(np.int64)
        raise Refusal(f"{file.name}, row {int(wrong[0]) + 1}: {name} is {values[wrong[0]]}; it must be a whole number.")
    raise Refusal(f"{file.name}: column {name} is {values.dtype}; it must hold whole numbers.")


def _floats(file: File, values: np.ndarray) -> np.ndarray:
    if values.dtype.kind not in "iuf":
        raise Refusal(f"{file.name}: column weight is {values.dtype}; it must hold numbers.")
    return values.astype(np.float32)


def _roles(file: File, values: np.ndarray) -> np.ndarray:
    texts = values.astype(str)
    unknown = np.flatnonzero(~np.isin(texts, list(ROLES)))
    if len(unknown):
        raise Refusal(
            f"{file.name}, row {int(unknown[0]) + 1}: role is {str(texts[unknown[0]])!r}; known: {', '.join(ROLES)}."
        )
    return np.where(texts == "generated", 1, 0)
