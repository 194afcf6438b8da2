"""A figure as plotly.js takes it: a plain dictionary of traces and layout.

plotly's own classes check every property each time one is set: a figure took eight times as long as it does now. The
views write the dictionary themselves, and their tests hold every figure to plotly's schema.
"""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np

Figure = dict[str, Any]
"""`data`, a list of traces, and `layout`; arrays are numpy's until the figure is sent."""
_TYPES = {"float32": "f4", "float64": "f8", "int32": "i4"}


def sent(figure: Figure | None) -> Figure | None:
    """The figure as JSON can hold it: arrays as base64, a third of their size as text; what is not finite is null."""
    return None if figure is None else _plain(figure)


def height_of(figure: Figure) -> int:
    """How low the figure may get, in pixels; the frame sets the rest."""
    return figure["layout"]["meta"]["height"]


def _plain(node: Any) -> Any:
    if isinstance(node, dict):
        return {name: _plain(value) for name, value in node.items()}
    if isinstance(node, np.ndarray):
        return _typed(node)
    if isinstance(node, list) and node and not isinstance(node[0], str | list):  # those are names, thousands of them
        return [_plain(value) for value in node]
    if isinstance(node, float) and not math.isfinite(node):
        return None
    return node


def _typed(array: np.ndarray) -> dict[str, Any] | list:
    if not array.size:
        return []
    told = {"dtype": _TYPES[array.dtype.name], "bdata": base64.b64encode(array.tobytes()).decode("ascii")}
    return told | ({"shape": ", ".join(map(str, array.shape))} if array.ndim > 1 else {})
