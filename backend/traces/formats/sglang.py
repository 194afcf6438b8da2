"""SGLang: responses with `meta_info.routed_experts` as JSON, or its expert distribution recorder's counts as .npz."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from backend.errors import Refusal
from backend.traces.counting import counts
from backend.traces.draft import ALL, Draft
from backend.traces.file import File, integers
from backend.traces.options import Options
from backend.traces.requests import array, decoded, each, ids, requests
from backend.traces.routing import Tokens, routes

TITLE = "SGLang's responses with `meta_info.routed_experts` as .json or .jsonl, or its `logical_count` as .npz"
FIELD, COUNTED, PHYSICAL = "meta_info.routed_experts", "logical_count", "global_physical_count"


def fits(file: File) -> bool:
    """Its names, and nobody else's."""
    if file.suffix == ".npz":
        return bool({COUNTED, PHYSICAL} & set(file.arrays))
    return any(isinstance(r.get("meta_info"), dict) and "routed_experts" in r["meta_info"] for r in requests(file))


def read(file: File, options: Options) -> Draft:
    """Tokens of each request, or counts of all."""
    if file.suffix == ".npz":
        return _recorded(file, options)
    parts = []
    for where, name, category, request in each(file):
        meta = request.get("meta_info")
        if isinstance(meta, dict) and meta.get("routed_experts") is not None:
            name = str(meta.get("id") or name)
            indices = _indices(where, meta, options)
            parts.append(Tokens(name, category, indices, token=_ids(where, request, len(indices))))
    if not parts:
        raise Refusal(f"{file.name} holds no response with `{FIELD}`; the request has to say return_routed_experts.")
    return routes(file.name, parts, options)


def _recorded(file: File, options: Options) -> Draft:
    found = file.arrays.get(COUNTED)
    if found is None:
        raise Refusal(
            f"{file.name} counts physical experts ({PHYSICAL}), of which one expert may have several; map them with "
            f"last_physical_to_logical_map first, and save them as {COUNTED}."
        )
    if found.ndim not in (2, 3):
        raise Refusal(f"{file.name}: {COUNTED} has shape {list(found.shape)}; it must be [steps, layers, experts].")
    whole = integers(found, file.name, COUNTED)
    return counts(file.name, {ALL: whole.sum(0) if whole.ndim == 3 else whole}, options)


def _indices(where: str, meta: Mapping[str, Any], options: Options) -> np.ndarray:
    """[tokens, layers, k]; base64 holds bare int32, whose shape follows from how many tokens were run and --k."""
    given = meta["routed_experts"]
    if not isinstance(given, str):
        found = array(given, where, FIELD)
        if found.ndim != 3:
            raise Refusal(f"{where}: {FIELD} has shape {list(found.shape)}; it must be [tokens, layers, k].")
        return found
    data = decoded(given, where, FIELD)
    if len(data) % 4:
        raise Refusal(f"{where}: {FIELD} holds {len(data)} bytes, which are no int32 numbers. Was it cut short?")
    flat = np.frombuffer(data, "<i4")
    asked, written = (meta.get(name) for name in ("prompt_tokens", "completion_tokens"))
    if not isinstance(asked, int) or not isinstance(written, int):
        raise Refusal(
            f"{where}: meta_info has no prompt_tokens and completion_tokens, so the shape of {FIELD} is open."
        )
    if options.k is None:
        raise Refusal(
            f"{where}: {FIELD} is a flat list of {len(flat)} ids; give --k, how many experts a token chooses.",
            asks="k",
        )
    tokens = asked + written - 1  # the last one written was never run
    if tokens < 1 or len(flat) % (tokens * options.k):
        raise Refusal(
            f"{where}: {FIELD} holds {len(flat)} ids, which are no whole number of layers for {tokens} tokens of "
            f"{options.k} experts (prompt_tokens {asked}, completion_tokens {written}, the last of which is not run)."
        )
    return flat.reshape(tokens, -1, options.k)


def _ids(where: str, request: Mapping[str, Any], rows: int) -> np.ndarray | None:
    """Ids of the tokens that were run, where the response holds those of the prompt and of its continuation."""
    asked, written = (ids(request.get(name), where, name) for name in ("input_ids", "output_ids"))
    if asked is None or written is None:
        return None
    both = np.concatenate([asked, written])
    if len(both) not in (rows, rows + 1):
        raise Refusal(f"{where}: input_ids and output_ids are {len(both)} tokens and {FIELD} has {rows} rows.")
    return both[:rows]
