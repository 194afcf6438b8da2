"""llama.cpp's importance matrix as GGUF: how often each expert was used, and the sums of what went into it."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from backend.errors import Refusal
from backend.traces.counting import counts
from backend.traces.draft import ALL, Draft
from backend.traces.file import File, integers
from backend.traces.gguf import MAGIC, Gguf, read_gguf
from backend.traces.options import Options

TITLE = "llama.cpp's importance matrix, as .gguf (general.type imatrix)"
INPUT = "sums of routed inputs are llama.cpp's, summed in float32; the mean of all tokens is that of the routed ones"
NO_INPUT = "the file holds sums of squares alone, no sums of inputs: there are no centroids"
_EXPERTS = re.compile(r"blk\.(\d+)\.ffn_(gate|up|gate_up|down)_exps\.weight\.counts")
_DENSE = re.compile(r"blk\.\d+\.(?!.*_exps\.).*\.counts")
_FIRST = ("gate", "up", "gate_up")
"""What the router's input goes into."""


def fits(file: File) -> bool:
    """Any GGUF: what it is of is said by `read`."""
    return file.head[:4] == MAGIC


def read(file: File, options: Options) -> Draft:
    """Counts, and where the file has `in_sum` the sums of routed inputs, of one text."""
    found = read_gguf(file.path)
    kind = found.facts.get("general.type")
    if kind != "imatrix":
        raise Refusal(f"{file.name}: general.type is {kind!r}; it must be 'imatrix'. A model's GGUF holds no counts.")
    layers = _layers(file.name, found)
    sources = {number: _source(names) for number, names in layers.items()}
    widths = {number: len(_counts(file.name, found, name)) for number, name in sources.items()}
    first = next(iter(widths))
    odd = next((number for number in widths if widths[number] != widths[first]), None)
    if odd is not None:
        raise Refusal(f"{file.name}: layer {odd} has {widths[odd]} experts and layer {first} {widths[first]}.")
    matrix = np.stack([_counts(file.name, found, name) for name in sources.values()])
    labels = [str(number) for number in layers]
    draft = counts(file.name, {ALL: matrix}, options, labels, k=_k(file.name, found, matrix, options))
    kept = [labels.index(label) for label in draft.layers]
    return _with_inputs(file.name, found, [list(sources.values())[row] for row in kept], draft)


def _layers(where: str, found: Gguf) -> dict[int, list[str]]:
    """Names of the tensors that experts used, by layer; those of one layer agree."""
    layers: dict[int, list[str]] = {}
    for name in found.tensors:
        if match := _EXPERTS.fullmatch(name):
            layers.setdefault(int(match[1]), []).append(name.removesuffix(".counts"))
    if not layers:
        raise Refusal(
            f"{where} counts no experts (no tensor blk.N.ffn_gate_exps.weight.counts): the model is dense, or the file "
            "was converted from the old .dat, which keeps no counts by expert."
        )
    for names in layers.values():
        for name in names[1:]:
            if not np.array_equal(_counts(where, found, name), _counts(where, found, names[0])):
                raise Refusal(f"{where}: {name}.counts and {names[0]}.counts differ, and both are of the same choices.")
    return dict(sorted(layers.items()))


def _source(names: list[str]) -> str:
    """The tensor that reads the router's input, or any that counts."""
    ordered = [name for part in _FIRST for name in names if f".ffn_{part}_exps." in name]
    return (ordered or names)[0]


def _counts(where: str, found: Gguf, name: str) -> np.ndarray:
    tensor = found.tensors[f"{name}.counts"]
    if tensor.ndim != 2 or tensor.shape[1] != 1:
        raise Refusal(f"{where}: {name}.counts has shape {list(tensor.shape)}; it must be [experts, 1].")
    return integers(tensor[:, 0], where, f"{name}.counts")


def _k(where: str, found: Gguf, matrix: np.ndarray, options: Options) -> int | None:
    """Selections over tokens, which the dense tensors counted; chunks only say it to the next chunk."""
    dense = {int(t.flat[0]) for n, t in found.tensors.items() if _DENSE.fullmatch(n) and t.size == 1 and t.flat[0] > 0}
    chunks = (found.facts.get(f"imatrix.chunk_{name}") for name in ("count", "size"))
    product = int(np.prod([n if isinstance(n, int) else 0 for n in chunks]))
    tokens = next(iter(dense)) if len(dense) == 1 else product
    selections = int(matrix[0].sum())
    if options.k is not None:
        if len(dense) == 1 and selections != options.k * tokens:
            raise Refusal(
                f"{where} counts {selections} selections of {tokens} tokens (its dense tensors), which is not "
                f"{options.k} a token (--k)."
            )
        return options.k
    if tokens < 1 or selections % tokens or not selections:
        raise Refusal(
            f"{where} counts {selections} selections a layer and {tokens} tokens, so how many experts a token chooses "
            "does not follow; give --k."
        )
    return selections // tokens


def _with_inputs(where: str, found: Gguf, names: list[str], draft: Draft) -> Draft:
    sums = [found.tensors.get(f"{name}.in_sum") for name in names]
    known = [each for each in sums if each is not None]
    for name in names:
        _check_sums(where, found, name, draft.experts)
    routed = all(any(f".ffn_{part}_exps." in name for part in _FIRST) for name in names)
    if len(known) < len(sums) or not routed:
        return replace(draft, notes=(*draft.notes, NO_INPUT))
    widths = {each.shape[1] for each in known}
    if len(widths) > 1:
        raise Refusal(f"{where}: the layers' in_sum have widths {sorted(widths)}; the model has one.")
    stack = np.stack(known)[None].astype(np.float32)
    return replace(draft, model=widths.pop(), arrays={**draft.arrays, "input": stack}, notes=(*draft.notes, INPUT))


def _check_sums(where: str, found: Gguf, name: str, experts: int) -> None:
    count = _counts(where, found, name)
    for kind in ("in_sum", "in_sum2"):
        tensor = found.tensors.get(f"{name}.{kind}")
        if tensor is None:
            continue
        if tensor.ndim != 2 or tensor.shape[0] != experts:
            raise Refusal(
                f"{where}: {name}.{kind} has shape {list(tensor.shape)}; it must be [{experts} experts, width]."
            )
        if not np.isfinite(tensor).all():
            expert, column = (int(i) for i in np.argwhere(~np.isfinite(tensor))[0])
            raise Refusal(f"{where}: {name}.{kind}[{expert}, {column}] is {float(tensor[expert, column])}.")
        unused = tensor[count == 0]
        if unused.size and unused.any():
            expert = int(np.flatnonzero(count == 0)[np.flatnonzero(unused.any(1))[0]])
            raise Refusal(f"{where}: {name} counts no token of expert {expert} and yet has its {kind}.")
