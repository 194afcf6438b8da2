"""Measures every architecture on its tiny model and writes the table: `make architectures`.

The table lies in `backend/checkpoints/architectures.json` and, for readers, in backend/README.md between two marks.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.functional import jacobian

from analysis.errors import GeometryError
from analysis.slots import Shape
from backend.adapters import Anatomy, adapt, refused
from backend.adapters.block import TOLERANCE, relative_error
from backend.adapters.law import Verified, verify
from backend.adapters.watch import Extra, Trace, watch
from backend.checkpoints.architectures import FILE, Architecture
from tests.backend import zoo

README = Path(__file__).parents[2] / "backend" / "README.md"
MARKS = "<!-- architectures: written by make architectures -->", "<!-- end of architectures -->"
TEXT = torch.arange(3, 35)
LEAST_BLOCK, LEAST_JACOBIAN = 1e-6, 1e-14
"""Bounds are no smaller than some roundings of float32 and float64: another machine sums in another order."""
HEADROOM = 3.0
"""Another machine's rounding may be this much larger before a bound is broken."""


@cache
def measured(kind: str) -> tuple[Architecture, Shape | None]:
    """The row of this type, its errors as they came out, and the sizes its adapter read."""
    if kind in refused.TYPES:
        return Architecture(kind, None, False, None, None, refused.TYPES[kind]), None
    model = zoo.build(kind)
    try:
        anatomy = adapt(model)
        found = verify(model, anatomy, TEXT)
    except GeometryError as error:
        return Architecture(kind, None, False, None, None, str(error)), None
    block = max((*found.output_error, *(found.shared_error if found.keeps_shared else ())))
    remarks = "; ".join(_remarks(model, anatomy, found))
    error = _jacobian_error(model.double(), anatomy)
    return Architecture(kind, anatomy.adapter, True, block, error, remarks), anatomy.shape


def bounded(row: Architecture) -> Architecture:
    """The row as it is written down: each error's next power of ten, with headroom."""
    block, error = _bound(row.block_error, LEAST_BLOCK), _bound(row.jacobian_error, LEAST_JACOBIAN)
    return Architecture(row.type, row.adapter, row.supported, block, error, row.remarks)


def as_json(rows: list[Architecture]) -> str:
    """One line a type."""
    return "[\n" + ",\n".join(json.dumps(asdict(row)) for row in sorted(rows, key=lambda row: row.type)) + "\n]\n"


def as_markdown(rows: tuple[Architecture, ...]) -> str:
    """The README's table."""
    lines = ["| type | adapter | block | Jacobian | remarks |", "|---|---|---|---|---|"]
    for row in rows:
        errors = ("", "") if row.block_error is None else (f"{row.block_error:.0e}", f"{row.jacobian_error:.0e}")
        adapter = row.adapter if row.supported else "**none**"
        lines.append(f"| {row.type} | {adapter} | {errors[0]} | {errors[1]} | {row.remarks} |")
    return "\n".join(lines)


def marked(text: str) -> str:
    """What stands between the two marks of a text."""
    return text.split(MARKS[0])[1].split(MARKS[1])[0].strip()


def _bound(error: float | None, least: float) -> float | None:
    if error is None:
        return None
    return max(least, float(f"1e{math.ceil(math.log10(max(error, 1e-99) * HEADROOM))}"))


def _remarks(model: Any, anatomy: Anatomy, found: Verified) -> list[str]:
    layer = anatomy.layers[-1]
    about = sys.modules[type(layer).__module__].__doc__ or ""
    told = [] if anatomy.adapter == "fused" else [about.splitlines()[0].partition(": ")[2].rstrip(".")]
    if layer.expert(0).gate is None:
        told.append("no gate")
    if anatomy.shape.shared:
        told.append("shared expert" if found.keeps_shared else "shared expert not read: its block does more with it")
    trace, returned = _seen(model, anatomy)
    if not anatomy.shape.shared:
        told += _beyond(trace, returned)
    try:
        layer.weights("router_weight")
    except GeometryError:
        told.append("router without rows")
    if trace.logits is None:
        told.append("router hides its logits")
    return told


@torch.no_grad()
def _seen(model: Any, anatomy: Anatomy) -> tuple[Trace, Tensor]:
    """The last layer's trace, and what its block returned."""
    kept: list[Tensor] = []
    layer = anatomy.layers[-1]
    hook = layer.block.register_forward_hook(
        lambda _, args, out: kept.append(out[0] if isinstance(out, tuple) else out)
    )
    with watch(anatomy, torch.arange(len(TEXT)), len(TEXT), Extra(outputs=True)) as traces:
        model(input_ids=TEXT[None], use_cache=False)
    hook.remove()
    return traces[-1], kept[0].reshape(len(TEXT), -1)


def _beyond(trace: Trace, returned: Tensor) -> list[str]:
    """What a block without a shared expert makes of the routed output."""
    routed = trace.output
    assert routed is not None
    if returned.shape != routed.shape:
        return ["block reads and returns another space than the experts"]
    scale = float((returned * routed).sum() / routed.square().sum())
    if relative_error(scale * routed, returned) > TOLERANCE[torch.float32]:
        return ["block adds to the routed output"]
    return [] if abs(scale - 1) < 1e-4 else [f"block returns {scale:g} times the routed output"]


def _jacobian_error(model: Any, anatomy: Anatomy) -> float:
    """Closed form against autograd through the model's own expert, in float64."""
    layer, x = anatomy.layers[-1], torch.randn(6, anatomy.shape.model, dtype=torch.float64)
    closed = layer.expert(1).mean_jacobian(x)
    each = [jacobian(lambda row: layer.alone(1, row[None])[0], row) for row in x]
    return relative_error(closed, torch.stack(each).mean(0))  # type: ignore[arg-type]


def main() -> None:
    """Write both files anew."""
    rows = [bounded(measured(kind)[0]) for kind in zoo.KINDS]
    FILE.write_text(as_json(rows))
    text = README.read_text()
    table = as_markdown(tuple(sorted(rows, key=lambda row: row.type)))
    README.write_text(f"{text.split(MARKS[0])[0]}{MARKS[0]}\n\n{table}\n\n{MARKS[1]}{text.split(MARKS[1])[1]}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
