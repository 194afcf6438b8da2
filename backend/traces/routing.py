"""From each token's choices to a draft: padding and dense layers are seen and told of, everything else is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from backend.errors import Refusal, TooLarge
from backend.traces.counting import MOST_EXPERTS, chosen_layers
from backend.traces.draft import Draft
from backend.traces.options import Options

UNKNOWN = -1
NO_WEIGHTS = "the file holds no combine weights: experts rank in the order in which it lists them"
ALL_SERVED = "the file does not say which selections were served: every selected expert counts as having served"
BYTES = 32
"""Of one selection while it is checked: its id, the same sorted, its weight, and what marks it as wrong."""


@dataclass(frozen=True)
class Tokens:
    """Some tokens of one prompt, in order: the experts each chose (token, layer, k), and what else is known."""

    id: str
    category: str
    indices: np.ndarray
    weights: np.ndarray | None = None
    token: np.ndarray | None = None
    position: np.ndarray | None = None
    role: np.ndarray | None = None


@dataclass(frozen=True)
class _Flat:
    """All tokens behind one another."""

    prompt: np.ndarray
    position: np.ndarray
    role: np.ndarray
    token: np.ndarray
    indices: np.ndarray
    weights: np.ndarray | None

    def rows(self, keep: np.ndarray) -> _Flat:
        columns = {n: getattr(self, n)[keep] for n in ("prompt", "position", "role", "token", "indices")}
        return _Flat(**columns, weights=None if self.weights is None else self.weights[keep])

    def layers(self, keep: Sequence[int]) -> _Flat:
        weights = None if self.weights is None else self.weights[:, keep]
        return replace(self, indices=self.indices[:, keep], weights=weights)


def routes(
    where: str,
    parts: Sequence[Tokens],
    options: Options,
    labels: Sequence[str] | None = None,
    experts: int | None = None,
    identity: bool = False,
) -> Draft:
    """The draft of these tokens.

    Args:
        where: The file, for sentences.
        parts: The tokens; a prompt may come in several parts.
        options: What was said beside the file.
        labels: Numbers of the layers in the decoder, where the file has them.
        experts: How many routed experts the file says there are.
        identity: Whether ids from there on name identity experts, which is known of our own routes alone.

    Raises:
        Refusal: What is wrong, with the prompt, the token and the layer.
        TooLarge: More selections than fit the budget.
    """
    parts = [part for part in parts if len(part.indices)]
    _check_shapes(where, parts, options)
    names = list(dict.fromkeys(part.id for part in parts))
    labels = tuple(labels) if labels is not None else tuple(map(str, range(parts[0].indices.shape[1])))
    flat = _flat(parts, {name: row for row, name in enumerate(names)})
    notes = (ALL_SERVED,) if flat.weights is not None else (NO_WEIGHTS, ALL_SERVED)
    flat, labels, said = _told_layers(where, flat, labels, options)
    flat, padded = _without_padding(where, flat)
    _check_k(where, flat, options)
    count = _experts(where, flat, experts, options)
    _check_ids(where, flat, names, labels, UNKNOWN if identity else count)
    _check_weights(where, flat, names, labels)
    _check_once(where, flat, names)
    kept = np.unique(flat.prompt)
    categories = {part.id: part.category for part in parts}
    ids = tuple(names[row] for row in kept)
    flat = replace(flat, prompt=np.searchsorted(kept, flat.prompt))
    arrays = {n: getattr(flat, n) for n in ("prompt", "position", "role", "token", "indices")}
    arrays |= {} if flat.weights is None else {"weights": flat.weights}
    shape = (count, flat.indices.shape[2])
    return Draft(labels, *shape, ids, tuple(categories[i] for i in ids), arrays, (*notes, *said, *padded))


def _check_shapes(where: str, parts: Sequence[Tokens], options: Options) -> None:
    if not parts:
        raise Refusal(f"{where} holds the routes of no token.")
    first = parts[0]
    for part in parts:
        if part.indices.ndim != 3 or 0 in part.indices.shape:
            raise Refusal(
                f"{where}: the routes of {part.id!r} have shape {list(part.indices.shape)}; they must be [tokens, "
                "layers, k]."
            )
        if part.indices.shape[1:] != first.indices.shape[1:]:
            raise Refusal(
                f"{where}: the routes of {part.id!r} have {part.indices.shape[1]} layers of {part.indices.shape[2]} "
                f"experts, and those of {first.id!r} {first.indices.shape[1]} of {first.indices.shape[2]}."
            )
    check_size(where, sum(part.indices.size for part in parts), options)


def check_size(where: str, selections: int, options: Options) -> None:
    """Raises `TooLarge` where so many selections do not fit the budget."""
    size = selections * BYTES
    if size > options.budget:
        raise TooLarge(
            f"{where} holds {selections:,} selections, which need about {size / 1e9:.1f} GB; the budget is "
            f"{options.budget / 1e9:.1f} GB. Import a part of it, or raise MOE_GEOMETRY_MEMORY (bytes)."
        )


def _flat(parts: Sequence[Tokens], rows: dict[str, int]) -> _Flat:
    def column(values: list[np.ndarray | None], fill: int, dtype: type) -> np.ndarray:
        filled = [
            np.full(len(part.indices), fill, dtype) if value is None else value
            for part, value in zip(parts, values, strict=True)
        ]
        return np.concatenate(filled).astype(dtype)

    positions = [np.arange(len(p.indices)) if p.position is None else p.position for p in parts]
    token = column([p.token for p in parts], UNKNOWN, np.int64)
    weights = [p.weights for p in parts if p.weights is not None]
    return _Flat(
        prompt=np.concatenate([np.full(len(p.indices), rows[p.id], np.int64) for p in parts]),
        position=np.concatenate(positions).astype(np.int64),
        role=column([p.role for p in parts], 0, np.int64),
        # Ids of some tokens only would pass for a vocabulary.
        token=token if (token >= 0).all() else np.full_like(token, UNKNOWN),
        indices=np.concatenate([p.indices for p in parts]).astype(np.int64),
        weights=np.concatenate(weights).astype(np.float32) if len(weights) == len(parts) else None,
    )


def _told_layers(
    where: str, flat: _Flat, labels: tuple[str, ...], options: Options
) -> tuple[_Flat, tuple[str, ...], tuple[str, ...]]:
    """The MoE layers: those named, else those in which tokens chose; a buffer of all layers is 0 or -1 in the dense."""
    count = flat.indices.shape[1]
    if options.layers is not None:
        keep = chosen_layers(where, options.layers, count)
        return flat.layers(keep), tuple(labels[i] for i in keep), ()
    if flat.indices.shape[2] == 1:
        constant = [labels[i] for i in range(count) if len(flat.indices) > 1 and not flat.indices[:, i].any()]
        if constant:
            raise Refusal(
                f"{where}: every token names expert 0 in layer {constant[0]}, as a dense layer does whose buffer stays "
                "0, and with one expert a token the two cannot be told apart; give --layers.",
                asks="layers",
            )
    blank = _blank(flat.indices)
    dense: np.ndarray = np.asarray(blank.all(0))
    if dense.all():
        raise Refusal(
            f"{where}: every token names one expert {flat.indices.shape[2]} times in every layer; these are no choices "
            "of a router."
        )
    gone = [labels[i] for i in range(count) if dense[i]]
    notes = (f"layers in which no token chose are taken as dense and left out: {', '.join(gone)}",) if gone else ()
    keep = [i for i in range(count) if not dense[i]]
    return flat.layers(keep), tuple(labels[i] for i in keep), notes


def _without_padding(where: str, flat: _Flat) -> tuple[_Flat, tuple[str, ...]]:
    """Without slots that hold -1 throughout, and tokens that no layer routed (padding, or never run)."""
    unused = (flat.indices == UNKNOWN).all((0, 1))
    if unused.any() and not unused.all():
        weights = None if flat.weights is None else flat.weights[..., ~unused]
        flat = replace(flat, indices=flat.indices[..., ~unused], weights=weights)
    never: np.ndarray = np.asarray(_blank(flat.indices).all(1))
    if never.all():
        raise Refusal(f"{where}: no token chose an expert in any layer (all ids are -1, or one id throughout).")
    if not never.any():
        return flat, ()
    return flat.rows(~never), (f"{int(never.sum())} tokens without a route (padding, or never run) are left out",)


def _blank(indices: np.ndarray) -> np.ndarray:
    """Which (token, layer) name no expert, or one k times."""
    same = (indices == indices[..., :1]).all(-1)
    return same if indices.shape[2] > 1 else (indices == UNKNOWN)[..., 0]


def _check_k(where: str, flat: _Flat, options: Options) -> None:
    seen = flat.indices.shape[2]
    if options.k is not None and options.k != seen:
        raise Refusal(f"{where} lists {seen} experts a token, and --k says {options.k}.")


def _experts(where: str, flat: _Flat, experts: int | None, options: Options) -> int:
    if experts is not None and options.experts is not None and experts != options.experts:
        raise Refusal(f"{where} says there are {experts} experts a layer, and --experts says {options.experts}.")
    count = experts or options.experts
    if count is None:
        raise Refusal(
            f"{where} does not say how many experts a layer has (the highest id seen is {int(flat.indices.max())}, and "
            "the last experts may never have been chosen); give --experts.",
            asks="experts",
        )
    if count > MOST_EXPERTS:
        raise Refusal(f"{where}: {count:,} experts a layer; at most {MOST_EXPERTS:,} are read.")
    if count < flat.indices.shape[2]:
        raise Refusal(f"{where} lists {flat.indices.shape[2]} experts a token of {count} that there are.")
    if count == flat.indices.shape[2] and flat.weights is None:
        raise Refusal(f"{where}: every token uses all {count} experts, and no combine weights tell them apart.")
    return count


def _check_ids(where: str, flat: _Flat, names: list[str], labels: tuple[str, ...], experts: int) -> None:
    wrong = flat.indices < 0
    if experts != UNKNOWN:
        wrong |= flat.indices >= experts
    if wrong.any():
        at, place = _place(flat, names, labels, wrong)
        found, rule = int(flat.indices[at]), "ids count from 0" if experts == UNKNOWN else f"ids are 0 to {experts - 1}"
        more = "" if found < 0 else " (numbered from 1, a shared expert in a slot of its own, or another --experts?)"
        raise Refusal(f"{where}: expert {found} at {place}; {rule}{more}.")
    if experts == UNKNOWN:
        return
    ordered = np.sort(flat.indices, -1)
    twice = ordered[..., 1:] == ordered[..., :-1]
    if twice.any():
        at, place = _place(flat, names, labels, twice)
        raise Refusal(
            f"{where}: expert {int(ordered[at])} is chosen twice at {place}; a token chooses k different ones."
        )


def _check_weights(where: str, flat: _Flat, names: list[str], labels: tuple[str, ...]) -> None:
    if flat.weights is None:
        return
    wrong = ~np.isfinite(flat.weights)
    if wrong.any():
        at, place = _place(flat, names, labels, wrong)
        raise Refusal(f"{where}: the weight at {place} is {float(flat.weights[at])}; it must be a number.")


def _check_once(where: str, flat: _Flat, names: list[str]) -> None:
    order = np.lexsort((flat.position, flat.prompt))
    prompt, position = flat.prompt[order], flat.position[order]
    again = np.flatnonzero((prompt[1:] == prompt[:-1]) & (position[1:] == position[:-1]))
    if len(again):
        at = int(again[0])
        raise Refusal(f"{where} has position {int(position[at])} of the prompt {names[int(prompt[at])]!r} twice.")


def _place(flat: _Flat, names: list[str], labels: tuple[str, ...], wrong: np.ndarray) -> tuple[tuple, str]:
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    token, layer = at[:2]
    place = f"prompt {names[int(flat.prompt[token])]!r}, position {int(flat.position[token])}, layer {labels[layer]}"
    return at, place
