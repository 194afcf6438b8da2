"""Numbers and names as a reader wants them: three figures, true minus signs, short names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def number(x: float, figures: int = 3) -> str:
    """A value to three figures; NaN as a word, so that nobody takes it for zero."""
    if not math.isfinite(x):
        return "undefined" if math.isnan(x) else "∞" if x > 0 else "−∞"
    if x == int(x) and abs(x) < 1e6:
        return f"{int(x):,}".replace("-", "−")
    size = abs(x)
    if size >= 1e5 or size < 1e-4:
        text = f"{x:.{figures - 1}e}"
    else:
        text = f"{x:,.{max(0, figures - 1 - math.floor(math.log10(size)))}f}"
    return text.replace("-", "−")


def span(low: float, high: float) -> str:
    """An interval in words."""
    return f"{number(low)} to {number(high)}"


def seconds(x: float) -> str:
    """A duration as people say it."""
    if x < 1:
        return "under a second"
    if x < 90:
        return f"{x:.0f} s"
    return f"{x / 60:.0f} min" if x < 5400 else f"{x / 3600:.1f} h"


def size(n: float) -> str:
    """Bytes with a unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000 or unit == "GB":
            return f"{n:.0f} {unit}" if unit in ("B", "kB") else f"{n:.1f} {unit}"
        n /= 1000
    return ""


def count(n: float) -> str:
    """A large whole number, short: 0, 41k, 2.05M, 4B."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if n >= size:
            text = f"{n / size:.3g}"
            return f"{float(text):g}{unit}"
    return f"{n:.0f}"


def step(n: int | None) -> str:
    """A training step, short: 24k, 2,500, 0."""
    if n is None:
        return ""
    return f"{n // 1000}k" if n >= 10_000 and n % 1000 == 0 else f"{n:,}"


def step_of(c: Mapping[str, Any]) -> str:
    """What a step of a run is called beside the others: its stage where it has one, and its step or its own name."""
    name = step(c["step"]) if c.get("step") is not None else str(c["id"]).rsplit("/", 1)[-1]
    return f"{c['stage']} {name}" if c.get("stage") else name


def checkpoint(c: Mapping[str, Any] | None, fallback: str | None = None) -> str:
    """A checkpoint's name as chips and footers show it."""
    if c is None:
        return fallback or "none"
    return f"{c['run']} {step_of(c)}" if c.get("run") and c.get("step") is not None else str(c["id"])


ROUTERS = {
    "softmax_aux": "softmax, auxiliary loss",
    "loss_free": "loss-free bias",
    "kmeans": "K-Means",
    "sigmoid_aux": "sigmoid, auxiliary loss",
    "sigmoid_free": "sigmoid, loss-free bias",
    "soft": "fully soft",
    "expert_choice": "expert choice",
    "hashed": "hash of the token",
    "frozen": "random, frozen",
    "unbalanced": "unbalanced",
    None: "–",
}


def router(c: Mapping[str, Any]) -> str:
    """The kind of router in words; an unknown one is named as its config names it."""
    if c.get("dense"):
        return "none: dense control"
    if c.get("trace"):
        return f"imported trace ({c['trace']})"
    return ROUTERS.get(c.get("router")) or str(c.get("router"))


def shape(c: Mapping[str, Any]) -> str:
    """Layers by experts and top-k."""
    if c.get("dense"):
        return f"{c.get('layers')} dense layers"
    return f"{c.get('moe_layers')} × {c.get('experts')}, " + ("all" if c.get("soft") else f"top-{c.get('top_k')}")
