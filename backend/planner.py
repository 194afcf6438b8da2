"""Which passes a question still needs, in shards, and what they cost.

A shard is 16 consecutive prompts of a set. Its states are stored under keys that know the checkpoint, the capture
options, the prompts and the statistic's code, but no prompt set and no category: a set that grows runs only its new
shards, and two sets share what they share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from analysis.measure import measures
from analysis.slots import SLOTS
from analysis.statistic import Statistic, statistics
from backend import prices
from backend.adapters.anatomy import STACKED
from backend.capture import CaptureOptions
from backend.checkpoints import Checkpoint
from backend.checkpoints.variants import variant
from backend.prices import DEAR, Machine, Need, Price, state_bytes
from backend.prompts import Prompt, PromptSet
from backend.question import Question, capture_key, digest, tracing_code
from backend.runners.messages import ShardWork
from backend.store.arrays import Artifact

SHARD = 16
KEPT_BYTES_A_LAYER = 4 << 20
"""A statistic that nobody asked for yet is kept along the way if a shard of it takes no more per MoE layer.

For an OLMoE that is all counts and router sums, about 60 MB a shard; its row samples and centroids would be 1 GB more.
"""
LEAST_BATCH = 256
"""Tokens of the smallest batch that a question is cut into to fit; below that a pass is all overhead. A guess."""
MOST_NAMED = 3
"""Measures that a refusal names."""
EXPERT_SLOTS = frozenset(SLOTS) - frozenset(STACKED)


class Kept(Protocol):
    """The part of the store a plan looks at."""

    def state_files(self, keys: list[str]) -> dict[str, Artifact]:
        """Where the states of these keys lie, those that are kept."""
        ...

    def chunk_keys(self, keys: list[str]) -> set[str]:
        """Those of these keys under which a routing chunk is kept."""
        ...


@dataclass(frozen=True)
class Side:
    """One checkpoint of a question: its stored states in prompt order, their keys, and what is still to run."""

    checkpoint: Checkpoint
    stored: Mapping[str, tuple[Artifact, ...]]
    keys: tuple[str, ...]
    missing: tuple[ShardWork, ...]


@dataclass(frozen=True)
class Plan:
    """All sides of a question, the start of its run last, and the checkpoints whose weights it reads."""

    sides: tuple[Side, ...]
    loaded: tuple[Checkpoint, ...]
    price: Price


def plan(question: Question, kept: Kept, machine: Machine | None = None) -> Plan:
    """What is stored and what is missing for this question; on a machine that pages, less of a model is held."""
    sides = tuple(side(question, checkpoint, kept) for checkpoint in question.read)
    running = [part.checkpoint for part in sides if part.missing]
    reads_weights = len(question.measure.statistics) < len(question.measure.reads)
    loaded = tuple(question.read if reads_weights else running)
    away = sum(checkpoint.weight_bytes for checkpoint in loaded if not checkpoint.fetched)
    missing = sum(tokens(part, question.capture) for part in sides)
    prompts = question.prompts.prompts if question.prompts else ()
    return Plan(sides, loaded, Price(len(running), missing, need(question, loaded, prompts, machine), away))


def need(
    question: Question, loaded: Sequence[Checkpoint], prompts: Sequence[Prompt], machine: Machine | None = None
) -> Need:
    """Bytes at the peak, were the question asked on these prompts."""
    each = [prices.need(c, question.measure.statistics, prompts, question.capture, machine) for c in loaded]
    # Router rows are copied; the experts' matrices stay in their models, and all sides are compared at once.
    if EXPERT_SLOTS & set(question.measure.reads):
        return sum(each, Need())
    return max(each, key=lambda one: one.total, default=Need())


def fitted(question: Question, kept: Kept, machine: Machine) -> tuple[Question, Plan]:
    """The question in batches as large as fit, on which no key depends, and its plan; it may not fit even so."""
    found = plan(question, kept, machine)
    prompts = question.prompts.prompts if question.prompts else ()
    least = max(LEAST_BATCH, prices.longest(prompts, question.capture))
    while not found.price.need.fits(machine) and question.capture.batch_tokens // 2 >= least:
        question = replace(question, capture=replace(question.capture, batch_tokens=question.capture.batch_tokens // 2))
        smaller = need(question, found.loaded, prompts, machine)
        found = replace(found, price=replace(found.price, need=smaller))
    return question, found


def check(question: Question, plan: Plan, machine: Machine) -> None:
    """Raises `TooLarge` where the question does not fit, naming what of it would."""
    prompts = question.prompts.prompts if question.prompts else ()

    def size(loaded: Sequence[Checkpoint], some: Sequence[Prompt], on: Machine = machine) -> Need:
        return need(question, loaded, some, on)

    def otherwise() -> list[tuple[str, Need]]:
        count = prices.most_prompts(prompts, lambda some: size(plan.loaded, some).fits(machine))
        fewer = (f"at most {count} of the {len(prompts)} prompts", size(plan.loaded, prompts[:count]))
        halved = [
            variant(c, "bf16") if c.precision == "float32" and not c.trace and not c.variant else c for c in plan.loaded
        ]
        wider = [c.id for c, half in zip(plan.loaded, halved, strict=True) if c is not half]
        half = (" and ".join(f"{name}@bf16" for name in wider), size(halved, prompts))
        paged = ("MOE_GEOMETRY_PAGING=always", size(plan.loaded, prompts, replace(machine, paging="always")))
        rest = [paged] if machine.paging != "always" and plan.price.need.held != "paged" else []
        offers = ([half] if wider else []) + rest + ([fewer] if count else [])
        return offers + others(question, plan, machine)

    names = " and ".join(checkpoint.id for checkpoint in plan.loaded)
    prices.check(f"{question.measure.name} of {names}", plan.price.need, machine, otherwise)


def others(question: Question, plan: Plan, machine: Machine) -> list[tuple[str, Need]]:
    """Measures of the same page that fit, where its own sums or samples are what does not; none of a trace."""
    prompts = question.prompts.prompts if question.prompts else ()
    if any(checkpoint.trace for checkpoint in plan.loaded):
        return []
    like = [m for m in measures().values() if (m.family, m.sides) == (question.measure.family, question.measure.sides)]
    needs = {m.name: need(replace(question, measure=m), plan.loaded, prompts, machine) for m in like}
    fits = {name: each for name, each in needs.items() if each.fits(machine)}
    more = f" and {len(fits) - MOST_NAMED} more" if len(fits) > MOST_NAMED else ""
    named = f"another measure of {question.measure.family}: {', '.join(list(fits)[:MOST_NAMED])}{more}"
    return [(named, max(fits.values(), key=lambda each: each.total))] if fits else []


def side(question: Question, checkpoint: Checkpoint, kept: Kept) -> Side:
    """What is stored and what is missing for one checkpoint of this question."""
    if question.prompts is None:
        return Side(checkpoint, {}, (), ())
    asked = question.measure.statistics
    pieces = [(prompts, _keys(question, checkpoint, prompts)) for prompts in shards(question.prompts)]
    files = kept.state_files([key for _, keys in pieces for key in keys.values()])
    lacking = [(prompts, keys) for prompts, keys in pieces if any(keys[name] not in files for name in asked)]
    routes = [routes_key(checkpoint, question.capture, prompts) for prompts, _ in lacking]
    chunks = kept.chunk_keys(routes)
    missing = tuple(
        ShardWork(
            prompts, {name: key for name, key in keys.items() if key not in files}, None if route in chunks else route
        )
        for (prompts, keys), route in zip(lacking, routes, strict=True)
    )
    stored = {name: tuple(files[keys[name]] for _, keys in pieces if keys[name] in files) for name in asked}
    found = tuple(keys[name] for _, keys in pieces for name in asked if keys[name] in files)
    return Side(checkpoint, stored, found, missing)


def tokens(part: Side, capture: CaptureOptions) -> int:
    """About how many tokens the missing shards of a side hold."""
    return sum(prices.tokens(shard.prompts, capture) for shard in part.missing)


def state_key(statistic: Statistic, checkpoint: Checkpoint, capture: CaptureOptions, prompts: Iterable[Prompt]) -> str:
    """The key under which a shard's state is stored."""
    return digest([statistic.name, statistic.code, tracing_code(), _shard_identity(checkpoint, capture, prompts)])


def routes_key(checkpoint: Checkpoint, capture: CaptureOptions, prompts: Iterable[Prompt]) -> str:
    """The key under which a shard's routing chunk is stored."""
    return digest(["routes", tracing_code(), _shard_identity(checkpoint, capture, prompts)])


def shards(prompts: PromptSet) -> list[tuple[Prompt, ...]]:
    """The set in pieces of 16 consecutive prompts."""
    rows = prompts.prompts
    return [tuple(rows[start : start + SHARD]) for start in range(0, len(rows), SHARD)]


def _keys(question: Question, checkpoint: Checkpoint, prompts: tuple[Prompt, ...]) -> dict[str, str]:
    """Keys of what a shard's one pass makes: what was asked for, and whatever is cheap to keep along the way."""
    asked = question.measure.statistics
    dear = DEAR & frozenset().union(*(statistics()[name].needs for name in asked))
    return {
        name: state_key(statistic, checkpoint, question.capture, prompts)
        for name, statistic in statistics().items()
        if checkpoint.gives(name)
        and (
            name in asked
            or (statistic.needs & DEAR <= dear and _cheap(statistic, checkpoint, prompts, question.capture))
        )
    }


def _cheap(statistic: Statistic, checkpoint: Checkpoint, prompts: tuple[Prompt, ...], capture: CaptureOptions) -> bool:
    size = state_bytes(statistic, checkpoint, prompts, capture)
    return size <= KEPT_BYTES_A_LAYER * max(checkpoint.moe_layers, 1)


def _shard_identity(checkpoint: Checkpoint, capture: CaptureOptions, prompts: Iterable[Prompt]) -> list:
    # What a trace holds was run once, elsewhere: no option of ours changes it.
    options = None if checkpoint.trace else capture_key(capture)
    return [checkpoint.fingerprint, options, [[p.id, p.digest] for p in prompts]]
