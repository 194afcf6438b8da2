"""What an answer or a state becomes in long form: rows for SQL, beside the file that holds it whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from analysis.result import Result
from analysis.statistic import State
from backend.wire import label_columns, long_table

MOST_CELLS = 200_000
"""Larger answers stay in their file alone."""
MOST_SIGNATURE_CELLS = 4_000_000
"""Of the prompts that one pass of a worker took: 269 prompts of 58 layers of 256 experts."""

_AXES = 4
_BOUNDS = ("value", "low", "high", "null_mean", "null_low", "null_high")


def answer_rows(key: str, result: Result, provenance: Mapping[str, Any]) -> pa.Table | None:
    """Rows for `answer_values`; None above `MOST_CELLS` cells or four axes."""
    shape = np.shape(result.values)
    if int(np.prod(shape)) > MOST_CELLS or len(shape) > _AXES:
        return None
    table = long_table(result)
    count = table.num_rows
    columns: dict[str, Any] = {name: _same(text, count) for name, text in answer_names(key, result, provenance).items()}
    for position, (axis, labels) in enumerate(
        zip(result.axes, label_columns(result.axes, shape), strict=True), start=1
    ):
        columns[f"axis{position}"] = _same(axis.name, count)
        columns[f"label{position}"] = labels
    return pa.table(columns | {name: table.column(name) for name in _BOUNDS})


def answer_names(key: str, result: Result, provenance: Mapping[str, Any]) -> dict[str, str | None]:
    """The columns that say which answer it is, shared by `answers` and `answer_values`; two checkpoints at most."""
    checkpoints = _checkpoints(provenance)
    prompts = provenance.get("prompts")
    return {
        "key": key,
        "measure": result.measure,
        "checkpoint": checkpoints[0] if checkpoints else None,
        "checkpoint_b": checkpoints[1] if len(checkpoints) > 1 else None,
        "prompts": prompts["name"] if prompts else None,
    }


def checkpoint_rows(key: str, provenance: Mapping[str, Any]) -> pa.Table:
    """Rows for `answer_checkpoints`: every checkpoint of the answer, in the order of its sides or steps."""
    checkpoints = _checkpoints(provenance)
    return pa.table(
        {
            "key": _same(key, len(checkpoints)),
            "position": pa.array(range(len(checkpoints)), pa.int32()),
            "checkpoint": pa.array(checkpoints, pa.string()),
        }
    )


def signature_rows(key: str, state: State, meta: Mapping[str, Any]) -> pa.Table | None:
    """Rows for `signatures` from a `prompt_counts` state; None for any other, or above `MOST_SIGNATURE_CELLS`."""
    if state.statistic != "prompt_counts" or state["selected"].numel() > MOST_SIGNATURE_CELLS:
        return None
    prompts, layers, experts = state["selected"].shape
    count = prompts * layers * experts
    cell = np.arange(count)
    prompt, layer = pa.array(cell // (layers * experts)), pa.array(cell // experts % layers)
    return pa.table(
        {
            "key": _same(key, count),
            "checkpoint": _same(meta.get("checkpoint"), count),
            "fingerprint": _same(meta.get("fingerprint"), count),
            "prompt": pa.array(state.prompts.ids, pa.string()).take(prompt),
            "prompt_digest": pa.array(state.prompts.digests, pa.string()).take(prompt),
            "layer": pa.array(state.shape.layers, pa.string()).take(layer),
            "expert": pa.array(cell % experts),
            "selected": state["selected"].numpy().ravel(),
            "served": state["served"].numpy().ravel(),
            "weight": state["weights"].numpy().ravel(),
            "tokens": pa.array(state["tokens"].numpy()).take(prompt),
        }
    )


def _checkpoints(provenance: Mapping[str, Any]) -> list[str]:
    return [checkpoint["id"] for checkpoint in provenance.get("checkpoints", ())]


def _same(value: str | None, count: int) -> pa.Array:
    return pa.nulls(count, pa.string()) if value is None else pa.repeat(pa.scalar(value, pa.string()), count)
