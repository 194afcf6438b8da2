"""A capture task, step by step: one forward pass feeds every statistic, and the routing chunk beside them."""

from __future__ import annotations

import time
from collections.abc import Generator

from analysis.slots import LayerBatch, RouteBatch
from analysis.statistic import State, Statistic
from analysis.statistic import get as get_statistic
from backend.capture import capture
from backend.runners import paged
from backend.runners.failures import TaskFailed
from backend.runners.messages import CaptureTask, Loaded, Message, Progress, ShardReady, ShardWork
from backend.runners.residents import PagedResident, Resident, Residents
from backend.runners.routes_chunk import RoutesChunk
from backend.store.arrays import Arrays


def run(task: CaptureTask, residents: Residents, arrays: Arrays) -> Generator[Message, None, None]:
    """Yields after every batch, so that the worker can look at its inbox, run something shorter, or drop this."""
    name = task.checkpoint.id
    if not residents.holds(task.checkpoint):
        yield Progress(task.id, f"loading {name}", 0.0, None, _estimate(task))
        residents.get(task.checkpoint)
        yield Loaded(task.id, name)
    resident = residents.get(task.checkpoint)
    if isinstance(resident, PagedResident):
        yield from paged.run(task, resident, arrays)
        return
    meter = Meter(task, resident)
    for work in task.shards:
        yield from _shard(task, work, residents, arrays, meter)


class Meter:
    """Counts tokens as they are done and says how long the rest will take at the pace so far."""

    def __init__(self, task: CaptureTask, resident: Resident):
        self._task = task
        limit, extra = task.capture.max_tokens, task.capture.generate
        texts = [prompt.text for work in task.shards for prompt in work.prompts]
        self._total = sum(min(len(resident.tokenizer(text)["input_ids"]), limit) + extra for text in texts)
        self._done = 0
        self._start = time.monotonic()

    def add(self, tokens: int) -> Progress:
        """The progress after these many tokens more."""
        self._done += tokens
        self._total = max(self._total, self._done)
        left = self._total - self._done
        eta = (time.monotonic() - self._start) / self._done * left if self._done else None
        stage = f"{self._task.checkpoint.id} · {self._done:,} of {self._total:,} tokens"
        return Progress(self._task.id, stage, self._done / max(self._total, 1), eta, left, self._done)


def _shard(
    task: CaptureTask, work: ShardWork, residents: Residents, arrays: Arrays, meter: Meter
) -> Generator[Message, None, None]:
    wanted = [get_statistic(name) for name in work.statistics]
    resident = residents.get(task.checkpoint)
    needs = frozenset().union(*(s.needs for s in wanted)) | {"routes"}
    states: dict[str, State] = {}
    chunk, tokens, notes = RoutesChunk(), 0, []
    for batch in capture(resident.model, resident.anatomy, resident.tokenizer, work.prompts, task.capture, needs):
        route = batch.route
        if route is None:
            raise TaskFailed("The pass gave no routes, though every pass is asked for them.")
        for statistic in wanted:
            state = states.get(statistic.name) or statistic.empty(route.shape)
            states[statistic.name] = _added(statistic, state, route, batch.layers)
        if work.routes:
            chunk.add(route)
        tokens += len(route.keys)
        notes += batch.notes
        yield meter.add(len(route.keys))
    files = {key: (name, arrays.put_state(states[name])) for name, key in work.statistics.items()}
    routes = arrays.put_bytes(chunk.parquet(), "routes", ".parquet") if work.routes else None
    yield ShardReady(task.id, work, files, routes, tokens, tuple(notes))


def _added(statistic: Statistic, state: State, route: RouteBatch, layers: tuple[LayerBatch, ...]) -> State:
    for part in layers if statistic.reads_layers else (route,):
        state = statistic.grow(state, part)
    return state


def _estimate(task: CaptureTask) -> int:
    return sum(len(prompt.text) // 4 + task.capture.generate for work in task.shards for prompt in work.prompts)
