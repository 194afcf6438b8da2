"""Merged states stay in memory as long as there is room, and not longer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from analysis.slots import Prompts, Shape, text_digest
from analysis.statistic import State, get
from backend.runners import evaluation
from backend.store.arrays import Arrays, Artifact

SHAPE = Shape(("0", "1"), experts=4, top_k=2, model=8, hidden=8)


def stored(arrays: Arrays, name: str) -> Artifact:
    empty = get("prompt_counts").empty(SHAPE)
    counts = {key: torch.ones(1, *array.shape[1:], dtype=array.dtype) for key, array in empty.arrays.items()}
    return arrays.put_state(State("prompt_counts", SHAPE, Prompts((name,), (text_digest(name),), ("x",)), counts))


def test_the_latest_states_are_remembered_within_a_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = Arrays(tmp_path)
    files = [stored(arrays, name) for name in "abc"]
    size = get("prompt_counts").bytes(SHAPE, 1)
    monkeypatch.setattr(evaluation, "REMEMBERED_BYTES", 2 * size)
    merged = evaluation.Merged(arrays)
    first, second, third = (merged.get("prompt_counts", (file,)) for file in files)
    assert merged.get("prompt_counts", (files[1],)) is second and merged.get("prompt_counts", (files[2],)) is third
    assert merged.get("prompt_counts", (files[0],)) is not first


def test_a_state_larger_than_the_budget_is_still_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = Arrays(tmp_path)
    file = stored(arrays, "a")
    monkeypatch.setattr(evaluation, "REMEMBERED_BYTES", 1)
    merged = evaluation.Merged(arrays)
    assert merged.get("prompt_counts", (file,)) is merged.get("prompt_counts", (file,))
