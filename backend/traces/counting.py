"""From count matrices to a draft: every layer of a trace sees the same tokens, and each token k different experts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from backend.errors import Refusal
from backend.traces.draft import Draft
from backend.traces.file import integers
from backend.traces.options import Options

NOT_ALONG = "counts alone: which token chose which expert is not known"
MOST_EXPERTS = 65_535


def counts(
    where: str,
    matrices: Mapping[str, np.ndarray],
    options: Options,
    labels: Sequence[str] | None = None,
    categories: Sequence[str] | None = None,
    k: int | None = None,
) -> Draft:
    """The draft of [layers, experts] matrices, one a prompt.

    Raises:
        Refusal: What is wrong, with the file, the prompt, the layer and the expert.
    """
    stack = _stacked(where, matrices)
    labels = tuple(labels) if labels is not None else tuple(map(str, range(stack.shape[1])))
    if len(labels) != stack.shape[1]:
        raise Refusal(f"{where}: {len(labels)} names of layers for counts of {stack.shape[1]} layers.")
    stack, labels, notes = _without_dense(where, stack, labels, options)
    _check_experts(where, stack.shape[2], options)
    top_k = _top_k(where, k, options)
    tokens = _tokens(where, stack, tuple(matrices), labels, top_k)
    ids = tuple(matrices)
    return Draft(
        labels,
        stack.shape[2],
        top_k,
        ids,
        tuple(categories) if categories is not None else ids,
        {"selected": stack, "tokens": tokens},
        (NOT_ALONG, *notes),
    )


def _stacked(where: str, matrices: Mapping[str, np.ndarray]) -> np.ndarray:
    first, rows = None, []
    for name, matrix in matrices.items():
        of = f"counts of {name!r}" if len(matrices) > 1 else "counts"
        if matrix.ndim != 2 or 0 in matrix.shape:
            raise Refusal(f"{where}: {of} have shape {list(matrix.shape)}; they must be [layers, experts].")
        first = first or (name, matrix.shape)
        if matrix.shape != first[1]:
            raise Refusal(
                f"{where}: {of} have shape {list(matrix.shape)} and those of {first[0]!r} {list(first[1])}; all must "
                "be of the same model."
            )
        whole = integers(matrix, where, of)
        if (whole < 0).any():
            layer, expert = (int(i) for i in np.argwhere(whole < 0)[0])
            raise Refusal(f"{where}: {of}[{layer}, {expert}] is {whole[layer, expert]}; a count is 0 or more.")
        rows.append(whole)
    if not rows:
        raise Refusal(f"{where} holds no counts.")
    return np.stack(rows)


def _without_dense(
    where: str, stack: np.ndarray, labels: tuple[str, ...], options: Options
) -> tuple[np.ndarray, tuple[str, ...], tuple[str, ...]]:
    """Without the layers that no token chose an expert in: engines number dense layers too, and leave them at 0."""
    if options.layers is not None:
        keep = chosen_layers(where, options.layers, stack.shape[1])
        return stack[:, keep], tuple(labels[i] for i in keep), ()
    seen: np.ndarray = np.asarray(stack.any((0, 2)))
    if not seen.any():
        raise Refusal(f"{where}: all counts are 0; no token was counted.")
    empty = [label for label, any_token in zip(labels, seen, strict=True) if not any_token]
    notes = (f"layers without any selection are taken as dense and left out: {', '.join(empty)}",) if empty else ()
    return stack[:, seen], tuple(label for label, yes in zip(labels, seen, strict=True) if yes), notes


def chosen_layers(where: str, layers: tuple[int, ...], count: int) -> list[int]:
    """The rows that `--layers` names; raises `Refusal` where the file has no such row."""
    if layers[-1] >= count:
        raise Refusal(f"{where} has layers 0 to {count - 1}, and --layers names {layers[-1]} (the first is 0).")
    return list(layers)


def _check_experts(where: str, experts: int, options: Options) -> None:
    if options.experts is not None and options.experts != experts:
        raise Refusal(f"{where} counts {experts} experts a layer, and --experts says {options.experts}.")
    if experts > MOST_EXPERTS:
        raise Refusal(f"{where} counts {experts:,} experts a layer; at most {MOST_EXPERTS:,} are read.")


def _top_k(where: str, k: int | None, options: Options) -> int:
    if k is not None and options.k is not None and k != options.k:
        raise Refusal(f"{where} says k = {k}, and --k says {options.k}.")
    top_k = options.k or k
    if top_k is None:
        raise Refusal(f"{where} does not say how many experts a token chooses; give --k.", asks="k")
    return top_k


def _tokens(where: str, stack: np.ndarray, ids: tuple[str, ...], labels: tuple[str, ...], k: int) -> np.ndarray:
    """Tokens of each prompt: selections of any layer, over k."""
    if k > stack.shape[2]:
        raise Refusal(f"{where}: k = {k} of {stack.shape[2]} experts; a token cannot choose more than there are.")
    sums = stack.sum(2)
    for row, name in enumerate(ids):
        of = f" of {name!r}" if len(ids) > 1 else ""
        uneven = np.flatnonzero(sums[row] != sums[row, 0])
        if len(uneven):
            other = int(uneven[0])
            raise Refusal(
                f"{where}: layer {labels[other]}{of} counts {sums[row, other]} selections and layer {labels[0]} "
                f"{sums[row, 0]}; all layers see the same tokens. Is the file cut short, or are its axes [layers, "
                "experts] swapped?"
            )
        if sums[row, 0] % k:
            raise Refusal(f"{where}: {sums[row, 0]} selections a layer{of} are no whole number of tokens at k = {k}.")
        tokens = sums[row, 0] // k
        over = np.argwhere(stack[row] > tokens)
        if len(over):
            layer, expert = (int(i) for i in over[0])
            raise Refusal(
                f"{where}: expert {expert} of layer {labels[layer]}{of} was chosen {stack[row, layer, expert]} times "
                f"by {tokens} tokens (k = {k}), and a token chooses an expert once at most. Is k right?"
            )
    if k == stack.shape[2]:
        raise Refusal(f"{where}: k = {k} of {k} experts: every token uses every expert, and counts tell nothing apart.")
    return sums[:, 0] // k
