"""llama.cpp's importance matrix as GGUF: how often each expert was used, and what went into it: sums, and squares."""

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
NO_INPUT = "the file holds no sums of routed inputs (in_sum): there are no centroids"
SQUARES = (
    "second moments of routed inputs by channel (in_sum2) are kept with the trace, and no measure reads them: those of "
    "second moments need how channels go together"
)
HIDDEN = (
    "sums of what goes into the down projections (ffn_down_exps) are checked and left out: an expert's mean output is "
    "their product with its down projection, and a trace has no weights"
)
_EXPERTS = re.compile(r"blk\.(\d+)\.ffn_(gate|up|gate_up|down)_exps\.weight\.counts")
_DENSE = re.compile(r"blk\.\d+\.(?!.*_exps\.).*\.counts")
_FIRST = ("gate", "up", "gate_up")
"""What the router's input goes into."""
INTO = {"input": "in_sum", "input_square": "in_sum2"}
"""Arrays of a draft, and the tensors that they come from."""


def fits(file: File) -> bool:
    """Any GGUF: what it is of is said by `read`."""
    return file.head[:4] == MAGIC


def read(file: File, options: Options) -> Draft:
    """Counts of one text, and where the file has `in_sum`, `in_sum2` the sums of routed inputs and their squares."""
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
            "does not follow; give --k.",
            asks="k",
        )
    return selections // tokens


def _with_inputs(where: str, found: Gguf, names: list[str], draft: Draft) -> Draft:
    """With the sums that every layer's first projection has: of inputs, and of their squares."""
    for name in names:
        _check_sums(where, found, name, draft.experts)
    notes = [HIDDEN] if _hidden(where, found, names, draft.experts) else []
    if not all(any(f".ffn_{part}_exps." in name for part in _FIRST) for name in names):
        return replace(draft, notes=(*draft.notes, NO_INPUT, *notes))
    arrays = {into: _stacked(where, found, names, kind) for into, kind in INTO.items()}
    known = {into: array for into, array in arrays.items() if array is not None}
    widths = {array.shape[-1] for array in known.values()}
    if len(widths) > 1:
        raise Refusal(f"{where}: in_sum and in_sum2 have widths {sorted(widths)}; the model has one.")
    said = [INPUT if "input" in known else NO_INPUT, *([SQUARES] if "input_square" in known else [])]
    model = widths.pop() if "input" in known else 0
    return replace(draft, model=model, arrays={**draft.arrays, **known}, notes=(*draft.notes, *said, *notes))


def _stacked(where: str, found: Gguf, names: list[str], kind: str) -> np.ndarray | None:
    """One array of all layers [1, layer, expert, width]; None where a layer has none."""
    sums = [found.tensors.get(f"{name}.{kind}") for name in names]
    known = [each for each in sums if each is not None]
    if len(known) < len(sums):
        return None
    widths = {each.shape[1] for each in known}
    if len(widths) > 1:
        raise Refusal(f"{where}: the layers' {kind} have widths {sorted(widths)}; the model has one.")
    return np.stack(known)[None].astype(np.float32)


def _hidden(where: str, found: Gguf, names: list[str], experts: int) -> bool:
    """Whether the file sums what goes into the down projections of these layers; such sums are held to be whole."""
    downs = [f"{name.split('.ffn_')[0]}.ffn_down_exps.weight" for name in names]
    there = [name for name in downs if {f"{name}.in_sum", f"{name}.counts"} <= found.tensors.keys()]
    for name in there:
        _check_sums(where, found, name, experts)
    return bool(there)


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
        if kind == "in_sum2" and (tensor < 0).any():
            expert, column = (int(i) for i in np.argwhere(tensor < 0)[0])
            raise Refusal(
                f"{where}: {name}.{kind}[{expert}, {column}] is {float(tensor[expert, column])}; a sum of squares is 0 "
                "or more."
            )
        unused = tensor[count == 0]
        if unused.size and unused.any():
            expert = int(np.flatnonzero(count == 0)[np.flatnonzero(unused.any(1))[0]])
            raise Refusal(f"{where}: {name} counts no token of expert {expert} and yet has its {kind}.")
