"""A capture task of a paged model: shards go through each layer together, so that the checkpoint is read once."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.statistic import State
from analysis.statistic import get as get_statistic
from backend.checkpoints.source import current_stamp
from backend.errors import Conflict
from backend.paging.layer_states import LayerStates
from backend.paging.sweep import Shard, Stepped, Sweep
from backend.paging.unfinished import Unfinished
from backend.question import capture_key, digest
from backend.runners.messages import CaptureTask, Message, Progress, ShardReady, ShardWork
from backend.runners.residents import PagedResident
from backend.runners.routes_chunk import RoutesChunk
from backend.store.arrays import Arrays

TOKEN_BYTES = 128
"""Of a token's keys and of one layer's routing, about."""


@dataclass(frozen=True)
class _Clock:
    """Says how far a sweep is, and how long the rest takes at the pace so far."""

    task: CaptureTask
    sweep: Sweep
    start: float
    done: int

    def told(self, step: Stepped, tokens: int) -> Progress:
        """After a step that brought this layer to so many tokens."""
        total, layers = self.sweep.tokens, self.sweep.layers
        gone = step.decoder * total + tokens
        new, left = gone - self.done * total, layers * total - gone
        eta = (time.monotonic() - self.start) / new * left if new > 0 else None
        layer = f"layer {step.decoder + 1} of {layers} from disk"
        stage = f"{self.task.checkpoint.id} · {layer}, {tokens:,} of {total:,} tokens"
        return Progress(self.task.id, stage, gone / (layers * total), eta, left // layers, gone // layers)


def run(task: CaptureTask, resident: PagedResident, arrays: Arrays) -> Generator[Message, None, None]:
    """Yields after every micro-batch of every layer; shards are ready at the end, all of a group at once."""
    for works in groups(task, resident):
        yield from _group(task, works, resident, arrays)


def groups(task: CaptureTask, resident: PagedResident) -> Iterator[list[ShardWork]]:
    """Shards that fit memory together while they wait before a layer; each group reads the checkpoint once."""
    shape, width = resident.anatomy.shape, resident.model.dtype.itemsize
    token = 3 * shape.model * width + len(shape.layers) * 16 * shape.top_k + TOKEN_BYTES
    group: list[ShardWork] = []
    size = 0
    for work in task.shards:
        texts = [resident.tokenizer(prompt.text)["input_ids"] for prompt in work.prompts]
        own = token * sum(min(len(ids), task.capture.max_tokens) for ids in texts)
        if group and size + own > resident.room:
            yield group
            group, size = [], 0
        group.append(work)
        size += own
    if group:
        yield group


def _group(
    task: CaptureTask, works: Sequence[ShardWork], resident: PagedResident, arrays: Arrays
) -> Generator[Message, None, None]:
    unfinished = Unfinished(arrays.unfinished / _key(task, works, resident))
    states = LayerStates(unfinished.folder)
    shards = [Shard(work.prompts, _needs(work)) for work in works]
    sweep = Sweep(resident.anatomy, resident.tokenizer, shards, task.capture, unfinished, states.put_away)
    clock, decoder, tokens = _Clock(task, sweep, time.monotonic(), unfinished.done), -1, 0
    for step in sweep.steps():
        names = [name for name in works[step.shard].statistics if get_statistic(name).reads_layers]
        while step.layers:
            states.grow(step.shard, names, step.layers.pop(0))
        tokens = step.tokens if step.decoder != decoder else tokens + step.tokens
        decoder = step.decoder
        yield clock.told(step, tokens)
    if current_stamp(Path(task.checkpoint.folder)) != task.checkpoint.stamp:
        unfinished.clear()
        raise Conflict(f"The files of {task.checkpoint.id} changed while they were read layer by layer; ask again.")
    for number, work in enumerate(works):
        yield _ready(task, work, number, sweep, states, arrays)
    unfinished.remove()


def _ready(
    task: CaptureTask, work: ShardWork, number: int, sweep: Sweep, layers: LayerStates, arrays: Arrays
) -> ShardReady:
    chunk, tokens, notes = RoutesChunk(), 0, []
    states: dict[str, State] = {}
    wanted = [get_statistic(name) for name in work.statistics]
    shape = None
    for batch in sweep.captured(number):
        assert batch.route is not None
        shape = batch.route.shape
        for statistic in wanted:
            if not statistic.reads_layers:
                state = states.get(statistic.name) or statistic.empty(shape)
                states[statistic.name] = statistic.grow(state, batch.route)
        if work.routes:
            chunk.add(batch.route)
        tokens += len(batch.route.keys)
        notes += batch.notes
    assert shape is not None
    files = {}
    for statistic in wanted:
        name = statistic.name
        state = layers.joined(number, name, shape) if statistic.reads_layers else states.pop(name)
        files[work.statistics[name]] = (name, arrays.put_state(state))
    routes = arrays.put_bytes(chunk.parquet(), "routes", ".parquet") if work.routes else None
    return ShardReady(task.id, work, files, routes, tokens, tuple(notes))


def _needs(work: ShardWork) -> frozenset[str]:
    return frozenset().union(*(get_statistic(name).needs for name in work.statistics)) | {"routes"}


def _key(task: CaptureTask, works: Sequence[ShardWork], resident: PagedResident) -> str:
    """Whatever decides a bit of what is kept between layers."""
    versions = [importlib.metadata.version(name) for name in ("torch", "transformers")]
    shards = [[sorted(work.statistics.values()), work.routes, [p.digest for p in work.prompts]] for work in works]
    options = [task.capture.batch_tokens, capture_key(task.capture)]
    return digest([shards, options, task.checkpoint.stamp, versions, str(resident.model.device)])
