"""An edit task: the untouched model, the edited one and random edits, over the same prompts one after the other."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Generator

import torch

from backend.checkpoints import Checkpoint
from backend.edits import Changes, Edit, Subject, edit_from
from backend.edits.comparison import perplexities, routing, tokens_changed
from backend.edits.trial import Trial, trial
from backend.runners.messages import EditTask, Loaded, Message, Progress, PruneTask, TriedReady
from backend.runners.residents import Resident, Residents, together

DRAWS = 20
"""Draws for each random edit wanted: where a layer has few experts, fewer distinct ones are found."""


def run(task: EditTask, residents: Residents) -> Generator[Message, None, None]:
    """Yields after every batch; a refusal comes before the first."""
    yield from loaded(task.id, residents, task.checkpoint, task.other)
    # Both are held here, so that none leaves where the budget has room for one.
    own = together(residents.get(task.checkpoint), task.checkpoint.id, "an edit")
    other = residents.get(task.other) if task.other else None
    edit, shape = edit_from(task.edit), own.anatomy.shape
    unused = torch.zeros(len(shape.layers), shape.experts, dtype=torch.long)
    about = Subject(own.model, own.anatomy, unused, other.anatomy if other else None)
    edit.changes(about)
    randoms = drawn(edit, task, about)
    runs: list[tuple[str, Edit | None]] = [("the untouched model", None), (edit.told(), edit)]
    runs += [(each.told(), each) for each in randoms]
    tried: list[Trial] = []
    for number, (what, each) in enumerate(runs):
        if number:
            about = Subject(own.model, own.anatomy, tried[0].usage, about.other)
        changes = each.changes(about) if each else Changes()
        tried.append((yield from followed(task, own, changes, what, (number, len(runs)))))
    yield TriedReady(task.id, _told(edit, randoms, about, tried, own))


def loaded(task: str, residents: Residents, *wanted: Checkpoint | None) -> Generator[Message, None, None]:
    """Read from disk what is not in memory."""
    for checkpoint in wanted:
        if checkpoint and not residents.holds(checkpoint):
            yield Progress(task, f"loading {checkpoint.id}", 0.0, None)
            residents.get(checkpoint)
            yield Loaded(task, checkpoint.id)


def drawn(edit: Edit, task: EditTask | PruneTask, about: Subject) -> list[Edit]:
    """Distinct random edits of this kind; what is asked seeds them, so they are the same on any day."""
    asked = json.dumps([task.checkpoint.fingerprint, edit.to_json()], sort_keys=True).encode()
    source = random.Random(int.from_bytes(hashlib.sha256(asked).digest()[:8], "big"))
    found: dict[Edit, None] = {}
    for _ in range(DRAWS * task.randoms):
        each = edit.random(about.anatomy.shape, source)
        if each is None or len(found) == task.randoms:
            break
        if each != edit:
            found[each] = None
    return list(found)


def followed(
    task: EditTask | PruneTask, own: Resident, changes: Changes, what: str, place: tuple[int, int]
) -> Generator[Message, None, Trial]:
    """One run over all prompts, told as the `place`-th of several."""
    number, runs = place
    total = sum(max(len(prompt.text) // 4, 1) for prompt in task.prompts)
    steps, done = trial(own.model, own.tokenizer, task.prompts, task.capture, changes), 0
    while True:
        try:
            done += next(steps)
        except StopIteration as ended:
            return ended.value
        fraction = (number + min(done / total, 1.0)) / runs
        left = max(total - done, 0) + total * (runs - number - 1)
        yield Progress(task.id, f"{task.checkpoint.id}, {what}: {done:,} tokens", fraction, None, left)


def _told(edit: Edit, randoms: list[Edit], about: Subject, tried: list[Trial], own: Resident) -> dict:
    plain, edited, *chance = tried
    saved = edit.saved(about)
    return {
        "edit": edit.to_json(),
        "told": edit.told(),
        "layers": plain.shape.layers,
        "experts": plain.shape.experts,
        "top_k": [plain.shape.top_k, edited.shape.top_k],
        "tokens": len(plain.loss),
        "prompts": len(plain.prompts),
        "perplexity": perplexities(plain, edited, chance),
        "routing": routing(plain, edited, chance),
        "tokens_changed": tokens_changed(plain, edited, own.tokenizer),
        "random": {"edits": [each.told() for each in randoms], "reason": edit.no_random},
        "saved": None if saved is None else {"parameters": saved.parameters, "bytes": saved.bytes},
        "usage": plain.usage.tolist(),
        "notes": [*dict.fromkeys((*plain.notes, *edited.notes))],
    }
