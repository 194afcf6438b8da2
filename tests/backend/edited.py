"""One edit of one model, run to its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from backend.adapters import Anatomy, adapt
from backend.capture import CaptureOptions
from backend.edits import Changes, Edit, Subject
from backend.edits.trial import Trial, trial
from tests.backend import tiny_moe

TEXTS = ("def area(r): return r", "Once upon a time there was", "3 x 4 = 12", "The river Rhine is 1,230 km long.")


def run(model: Any, changes: Changes | None = None, texts: Sequence[str] = TEXTS) -> Trial:
    steps = trial(model, tiny_moe.tokenizer(), tiny_moe.prompts(*texts), CaptureOptions(), changes or Changes())
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            return ended.value


def subject(model: Any, usage: torch.Tensor | None = None, other: Anatomy | None = None) -> Subject:
    anatomy = adapt(model)
    shape = anatomy.shape
    counts = torch.ones(len(shape.layers), shape.experts, dtype=torch.long) if usage is None else usage
    return Subject(model, anatomy, counts, other)


def edited(model: Any, edit: Edit, texts: Sequence[str] = TEXTS, **about: Any) -> Trial:
    return run(model, edit.changes(subject(model, **about)), texts)


def same(a: Trial, b: Trial) -> bool:
    """To the last bit."""
    return torch.equal(a.loss.nan_to_num(-1), b.loss.nan_to_num(-1)) and torch.equal(a.chosen, b.chosen)


def state(model: Any) -> Mapping[str, torch.Tensor]:
    """Every tensor, buffers that are not saved included."""
    return {name: t.clone() for name, t in (*model.named_parameters(), *model.named_buffers())}


def traits(model: Any) -> list[Any]:
    """What modules and config hold beside tensors, and which modules there are."""
    plain = (int, float, str, bool, type(None))
    modules = [
        (name, id(m), sorted((k, v) for k, v in vars(m).items() if isinstance(v, plain)), "forward" in vars(m))
        for name, m in model.named_modules()
    ]
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    return [modules, hooks, model.config.to_dict()]
