"""An edited model as a checkpoint of its own, in the layout that transformers saves and loads; the original is read."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from backend.adapters import EXPERT_KEYS, adapt
from backend.adapters.anatomy import Anatomy
from backend.checkpoints import Checkpoint, load, load_tokenizer
from backend.edits.changes import Changes, applied
from backend.edits.edit import Edit, Subject
from backend.edits.kinds.prune import Prune
from backend.errors import Conflict, Refusal

NOTE = "edit.json"
"""Beside the weights: what was done to which checkpoint."""


def export(
    checkpoint: Checkpoint, edit: Edit, usage: list[list[int]], folder: Path, other: Checkpoint | None = None
) -> int:
    """Write the edited checkpoint with its tokenizer into a new folder; the number of its parameters.

    Args:
        checkpoint: The original.
        edit: One that lives in tensors or config.
        usage: Selections by layer and expert of the untouched model, as trying the edit told them.
        folder: A folder that is not there yet.
        other: The checkpoint that the edit takes something from.

    Raises:
        Conflict: There is something at `folder` already.
        Refusal: The edit lives in the forward pass, which no file of this layout can say.
    """
    if folder.exists():
        raise Conflict(f"{folder} is there already; name a folder that is not.")
    model: Any = load(checkpoint, "cpu")
    anatomy = adapt(model)
    source = adapt(load(other, "cpu")) if other else None
    changes = edit.changes(Subject(model, anatomy, torch.tensor(usage), source))
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    if isinstance(edit, Prune):
        size = _save(_slim(model, anatomy, edit), partial)
    else:
        _check_written(edit, changes)
        with applied(changes):
            size = _save(model, partial)
    load_tokenizer(checkpoint).save_pretrained(partial)
    about = {"checkpoint": checkpoint.id, "fingerprint": checkpoint.fingerprint, "edit": edit.to_json()}
    (partial / NOTE).write_text(json.dumps(about, indent=1) + "\n", "utf-8")
    partial.rename(folder)
    return size


def _save(model: Any, folder: Path) -> int:
    model.save_pretrained(folder)
    return model.num_parameters()


def _check_written(edit: Edit, changes: Changes) -> None:
    if changes.reroutings:
        raise Refusal(
            f"{edit.told()}: this lives in the forward pass, and no checkpoint of this layout can say it. A keep-list "
            "that drops equally many experts in every layer can be written."
        )
    for place in changes.places:
        if isinstance(place.value, torch.nn.Module) and _rule(getattr(place.owner, place.name)) != _rule(place.value):
            raise Refusal(f"{edit.told()}: these routers follow another rule, which this model's config cannot say.")


def _rule(router: torch.nn.Module) -> tuple[str, dict[str, Any]]:
    """What a router does beside its tensors."""
    plain = {k: v for k, v in vars(router).items() if isinstance(v, int | float | str) and not k.startswith("_")}
    return type(router).__name__, plain


def _slim(model: Any, anatomy: Anatomy, edit: Prune) -> Any:
    """The same architecture with fewer experts, holding what is left of each layer's tensors."""
    sizes = {len(set(kept)) for kept in edit.keep}
    if len(sizes) > 1:
        raise Refusal(f"The layers would keep {sorted(sizes)} experts; a config has one number for all of them.")
    [kept], experts = sizes, anatomy.shape.experts
    config = copy.deepcopy(model.config)
    text = config.get_text_config()
    for key in EXPERT_KEYS:
        if getattr(text, key, None) == experts:
            setattr(text, key, kept)
    state = dict(model.state_dict())
    prefixes = {id(module): name for name, module in model.named_modules()}
    for layer, keep in zip(anatomy.layers, edit.keep, strict=True):
        for module in (layer.experts, layer.router):
            rows = [
                f"{prefixes[id(module)]}.{name}" for name, t in module.state_dict().items() if _by_expert(t, experts)
            ]
            state |= {name: state[name][torch.tensor(sorted(set(keep)))] for name in rows}
    slim = type(model)(config).to(model.dtype).eval()
    slim.load_state_dict(state)
    return slim


def _by_expert(tensor: Tensor, experts: int) -> bool:
    return tensor.dim() > 0 and len(tensor) == experts
