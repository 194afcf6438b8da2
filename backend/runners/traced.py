"""A capture task of an imported trace: its routes or counts stand in for a pass, and no model is loaded."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

from analysis.statistic import State
from analysis.statistic import get as get_statistic
from backend.checkpoints import Checkpoint
from backend.runners.failures import TaskFailed
from backend.runners.messages import CaptureTask, Message, Progress, ShardReady, ShardWork
from backend.runners.routes_chunk import RoutesChunk
from backend.store.arrays import Arrays, Artifact
from backend.traces.trace import Trace


def run(task: CaptureTask, arrays: Arrays) -> Generator[Message, None, None]:
    """Yields after every piece of tokens, as a pass does."""
    checkpoint = task.checkpoint
    trace = _trace(arrays, checkpoint)
    total, done = 0, 0
    for work in task.shards:
        trace.check(work.prompts, checkpoint.id, checkpoint.prompts)
        total += trace.tokens(work.prompts)
    for work in task.shards:
        states: dict[str, State] = {}
        chunk = RoutesChunk()
        for batch in trace.batches(work.prompts):
            for name in work.statistics:
                statistic = get_statistic(name)
                states[name] = statistic.grow(states.get(name) or statistic.empty(trace.shape), batch)
            chunk.add(batch)
            done += len(batch.keys)
            yield Progress(task.id, _stage(task, done, total), done / max(total, 1), None, total - done, done)
        if not trace.routed:
            states = {name: trace.counted(name, work.prompts) for name in work.statistics}
        yield _ready(task, work, trace, states, chunk, arrays)


def _ready(
    task: CaptureTask, work: ShardWork, trace: Trace, states: dict[str, State], chunk: RoutesChunk, arrays: Arrays
) -> ShardReady:
    files = {key: (name, arrays.put_state(states[name])) for name, key in work.statistics.items()}
    keep = work.routes and trace.routed
    routes = arrays.put_bytes(chunk.parquet(), "routes", ".parquet") if keep else None
    notes = tuple(f"{task.checkpoint.id}: {note}" for note in trace.notes)
    return ShardReady(task.id, work, files, routes, trace.tokens(work.prompts), notes)


def _trace(arrays: Arrays, checkpoint: Checkpoint) -> Trace:
    suffix = Path(checkpoint.folder).suffix
    kept = Artifact(checkpoint.fingerprint or "", "trace", suffix, (), 0, checkpoint.folder)
    data = arrays.get_bytes(kept)
    if data is None:
        raise TaskFailed(f"What the store kept of {checkpoint.id} is missing or damaged; import it again.")
    return Trace.from_bytes(data)


def _stage(task: CaptureTask, done: int, total: int) -> str:
    return f"{task.checkpoint.id} · {done:,} of {total:,} tokens of the trace"
