"""A prune task: what each criterion would keep, and what its keep-list costs, beside random ones of the same size."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

from analysis.pruning import Keep, agreement, keep_list, kept_number, overlap, random_overlap
from analysis.saliency import CRITERIA, scores
from analysis.slots import BLOCKS
from analysis.statistic import State
from analysis.statistic import get as get_statistic
from backend.capture import capture
from backend.edits import Changes, Edit, Subject
from backend.edits.comparison import perplexities
from backend.edits.kinds.prune import Prune
from backend.edits.trial import Trial
from backend.runners.edits import drawn, followed, loaded
from backend.runners.messages import Message, Progress, PruneTask, TriedReady
from backend.runners.residents import Resident, Residents, together

READ = ("contribution_sums", "output_sums")
HALVES = tuple(range(start, BLOCKS, 2) for start in (0, 1))


@dataclass(frozen=True)
class Choice:
    """What one criterion keeps, and the overlap of what it keeps on either half of the prompts."""

    criterion: str
    keep: Keep
    ceiling: float


def run(task: PruneTask, residents: Residents) -> Generator[Message, None, None]:
    """One pass for the scores, then one for each distinct keep-list; a refusal comes before the first."""
    yield from loaded(task.id, residents, task.checkpoint)
    own = together(residents.get(task.checkpoint), task.checkpoint.id, "trying keep-lists")
    shape = own.anatomy.shape
    kept = kept_number(shape.experts, 1 if shape.soft else shape.top_k, task.ratio)
    states = yield from _states(task, own)
    choices = [_choice(states, criterion, kept) for criterion in CRITERIA]
    keeps = list(dict.fromkeys(choice.keep for choice in choices))
    about = Subject(own.model, own.anatomy, states[READ[0]]["served"].sum(0))
    chance = drawn(Prune(keeps[0]), task, about)
    edits: list[Edit] = [*map(Prune, keeps), *chance]
    total = len(edits) + 1
    plain = yield from followed(task, own, Changes(), "the untouched model", (0, total))
    tried: list[Trial] = []
    for number, edit in enumerate(edits, 1):
        what = f"keep-list {number} of {len(edits)}"
        tried.append((yield from followed(task, own, edit.changes(about), what, (number, total))))
    costs = {keep: perplexities(plain, run, tried[len(keeps) :]) for keep, run in zip(keeps, tried, strict=False)}
    saved = edits[0].saved(about)
    yield TriedReady(
        task.id,
        {
            "ratio": task.ratio,
            "experts": shape.experts,
            "kept": kept,
            "layers": shape.layers,
            "tokens": len(plain.loss),
            "prompts": len(plain.prompts),
            "criteria": [_told(choice, costs, shape.layers, shape.experts) for choice in choices],
            "agreement": agreement([choice.keep for choice in choices]),
            "random_agreement": random_overlap(shape.experts, kept),
            "random": len(chance),
            "saved": None if saved is None else {"parameters": saved.parameters, "bytes": saved.bytes},
            "notes": list(dict.fromkeys(plain.notes)),
        },
    )


def _states(task: PruneTask, own: Resident) -> Generator[Message, None, Mapping[str, State]]:
    statistics = [get_statistic(name) for name in READ]
    needs = frozenset({"routes"}).union(*(s.needs for s in statistics))
    states: dict[str, State] = {}
    for batch in capture(own.model, own.anatomy, own.tokenizer, task.prompts, task.capture, needs):
        for statistic in statistics:
            # The batch's own shape: a shared expert that cannot be read is not in it.
            state = states.get(statistic.name) or statistic.empty(batch.layers[0].shape)
            for layer in batch.layers:
                state = statistic.grow(state, layer)
            states[statistic.name] = state
        # all keep-lists are still to run: whatever is shorter goes first
        left = sum(len(prompt.text) // 4 for prompt in task.prompts)
        yield Progress(task.id, f"{task.checkpoint.id}, what each expert gives", 0.0, None, left)
    return states


def _choice(states: Mapping[str, State], criterion: Any, kept: int) -> Choice:
    given, output = (states[name] for name in READ)
    first, second = (keep_list(scores(given, output, criterion, half), kept) for half in HALVES)
    return Choice(criterion, keep_list(scores(given, output, criterion), kept), overlap(first, second))


def _told(choice: Choice, costs: Mapping[Keep, list], layers: tuple[str, ...], experts: int) -> dict[str, Any]:
    lists = {
        label: {"keep": list(kept), "drop": [e for e in range(experts) if e not in kept]}
        for label, kept in zip(layers, choice.keep, strict=True)
    }
    return {
        "criterion": choice.criterion,
        "layers": lists,
        "halves": choice.ceiling,
        "perplexity": costs[choice.keep],
    }
