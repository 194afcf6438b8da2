"""vLLM's routed experts (`--enable-return-routed-experts`): responses as JSON, or their arrays as .npz or .npy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from backend.errors import Refusal
from backend.prompts.check import UNCATEGORISED
from backend.traces.draft import ALL, Draft
from backend.traces.file import File, integers
from backend.traces.options import Options
from backend.traces.requests import array, each, ids, requests
from backend.traces.routing import Tokens, check_size, routes

TITLE = "vLLM's `prompt_routed_experts` and `routed_experts`, [tokens, layers, k], as .json, .jsonl, .npz or .npy"
PROMPT, GENERATED = "prompt_routed_experts", "routed_experts"


def fits(file: File) -> bool:
    """Either name, at the top of a response or in its first choice; or a bare array of three axes."""
    if file.suffix == ".npz":
        return bool({PROMPT, GENERATED} & set(file.arrays))
    if file.array is not None:
        return file.array.ndim == 3
    return any(
        any(choice.get(name) is not None for name in (PROMPT, GENERATED))
        for r in requests(file)
        for choice in _choices(r)
    )


def read(file: File, options: Options) -> Draft:
    """Tokens of each request: the prompt's, then those of each choice behind it."""
    if file.suffix == ".npz":
        return routes(file.name, list(_tokens(file.name, ALL, UNCATEGORISED, file.arrays)), options)
    if file.array is not None:
        check_size(file.name, file.array.size, options)
        return routes(file.name, list(_windows(file, integers(file.array, file.name, "the array"), options)), options)
    parts = [part for where, name, category, request in each(file) for part in _tokens(where, name, category, request)]
    if not parts:
        raise Refusal(f"{file.name} holds no response with `{PROMPT}` or `{GENERATED}`.")
    return routes(file.name, parts, options)


def _windows(file: File, indices: np.ndarray, options: Options) -> Iterator[Tokens]:
    if indices.ndim != 3:
        raise Refusal(f"{file.name} has shape {list(indices.shape)}; routes are [tokens, layers, k].")
    step = options.window or max(len(indices), 1)
    for number, start in enumerate(range(0, len(indices), step)):
        yield Tokens(f"window-{number}" if options.window else ALL, UNCATEGORISED, indices[start : start + step])


def _choices(request: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The response itself with each of its choices laid over it: servers put the same names in either place."""
    choices = request.get("choices")
    laid = [c for c in choices if isinstance(c, dict)] if isinstance(choices, list) else [{}]
    return [{**request, **{k: v for k, v in choice.items() if v is not None and k != "id"}} for choice in laid]


def _tokens(where: str, name: str, category: str, request: Mapping[str, Any]) -> Iterator[Tokens]:
    choices = _choices(request)
    for number, choice in enumerate(choices):
        label = name if not number else f"{name}-{number}"
        yield from _choice(where, label, category, choice, with_prompt=not number)


def _choice(where: str, name: str, category: str, choice: Mapping[str, Any], with_prompt: bool) -> Iterator[Tokens]:
    given, written = (
        None if choice.get(field) is None else _three(array(choice[field], where, field), where, field)
        for field in (PROMPT, GENERATED)
    )
    asked, said = (ids(choice.get(field), where, field) for field in ("prompt_token_ids", "token_ids"))
    start = 0
    if given is not None:
        start = len(given)
        _check(where, PROMPT, given, "prompt_token_ids", asked, short=0)
        if with_prompt:  # the prompt was run once, however many choices follow it
            yield Tokens(name, category, given, token=asked, position=np.arange(start), role=np.zeros(start, int))
    elif written is not None and asked is not None and len(written) >= len(asked):
        # Before they were told apart, one array held the whole sequence.
        start = len(asked)
        if with_prompt:
            yield Tokens(name, category, written[:start], None, asked, np.arange(start), np.zeros(start, int))
        written = written[start:]
    if written is not None and len(written):
        # The last token written was never run, so it may have no row.
        _check(where, GENERATED, written, "token_ids", said, short=1)
        token = None if said is None else said[: len(written)]
        position = start + np.arange(len(written))
        yield Tokens(name, category, written, None, token, position, np.ones(len(written), int))


def _three(found: np.ndarray, where: str, field: str) -> np.ndarray:
    if found.ndim != 3:
        # An empty list has lost its other axes.
        if found.size == 0:
            return found.reshape(0, 1, 1)
        raise Refusal(f"{where}: {field} has shape {list(found.shape)}; it must be [tokens, layers, k].")
    return found


def _check(where: str, field: str, rows: np.ndarray, of: str, tokens: np.ndarray | None, short: int) -> None:
    if tokens is not None and not len(tokens) - short <= len(rows) <= len(tokens):
        raise Refusal(
            f"{where}: {field} has {len(rows)} rows and {of} {len(tokens)} ids; they must be of the same tokens."
        )
