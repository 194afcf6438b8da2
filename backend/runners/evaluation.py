"""An evaluation task: stored states are merged, labelled and handed to the measure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator
from dataclasses import replace
from functools import reduce

from analysis import inference, measure
from analysis.errors import TooFew
from analysis.measure import Inputs, Measure
from analysis.result import Result
from analysis.slots import SLOTS
from analysis.statistic import State
from analysis.statistic import get as get_statistic
from backend.runners.failures import TaskFailed
from backend.runners.messages import EvaluateTask, Loaded, Message, Progress, ResultReady, SideFiles
from backend.runners.residents import Residents
from backend.store.arrays import Arrays, Artifact

REMEMBERED_BYTES = 2 << 30
"""Merged states kept in memory, the latest first, so that turning a knob reads no file."""


class Merged:
    """Merges state files and remembers the last ones."""

    def __init__(self, arrays: Arrays):
        self._arrays = arrays
        self._kept: OrderedDict[tuple[str, ...], State] = OrderedDict()

    def get(self, statistic: str, files: tuple[Artifact, ...]) -> State:
        """The state of all these shards, prompts in the order of the files."""
        key = (statistic, *(file.digest for file in files))
        if key not in self._kept:
            self._kept[key] = _merge(statistic, [self._read(file) for file in files])
            while len(self._kept) > 1 and sum(map(_bytes, self._kept.values())) > REMEMBERED_BYTES:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]

    def keep(self, result: Result) -> tuple[Result, dict[str, Artifact]]:
        """The result without its arrays, and the files they are in now."""
        files = {name: self._arrays.put_array(array) for name, array in result.arrays.items()}
        return replace(result, arrays={}), files

    def _read(self, file: Artifact) -> State:
        state = self._arrays.get_state(file)
        if state is None:
            self._arrays.discard(file)
            raise TaskFailed(
                f"A stored state ({file.digest[:12]}) is missing or damaged; ask again and it is made anew."
            )
        return state


def run(task: EvaluateTask, residents: Residents, merged: Merged) -> Generator[Message, None, None]:
    """Yields progress, then the result."""
    asked = measure.get(task.measure)
    yield Progress(task.id, f"measuring {asked.title.lower()}", 1.0, None)
    sides = []
    for side in (*task.sides, *([task.start] if task.start else [])):
        if _slots(asked) and not residents.holds(side.checkpoint):
            yield Progress(task.id, f"loading {side.checkpoint.id}", 0.0, None)
            residents.get(side.checkpoint)
            yield Loaded(task.id, side.checkpoint.id)
        sides.append(_inputs(asked, side, residents, merged))
    start = sides.pop() if task.start else None
    result, files = merged.keep(inference.evaluate(asked, tuple(sides), task.knobs, start))
    yield ResultReady(task.id, result, files)


def _inputs(asked: Measure, side: SideFiles, residents: Residents, merged: Merged) -> Inputs:
    states = {name: merged.get(name, files).labelled(side.categories) for name, files in side.states.items()}
    slots = _slots(asked)
    if not slots:
        if not states:
            raise TooFew(f"{asked.name} reads neither weights nor states of any prompt")
        return Inputs(next(iter(states.values())).shape, states, label=side.label)
    anatomy = residents.get(side.checkpoint).anatomy
    # An optional slot is of the shared expert: None to a measure where the model has none.
    held = {name: anatomy.slot(name) for name in slots if anatomy.shape.shared or not SLOTS[name].optional}
    return Inputs(anatomy.shape, states, held, side.label)


def _slots(asked: Measure) -> tuple[str, ...]:
    return tuple(name for name in asked.reads if name in SLOTS)


def _bytes(state: State) -> int:
    return sum(array.numel() * array.element_size() for array in state.arrays.values())


def _merge(name: str, states: list[State]) -> State:
    """Pairwise, so that a set of thousands of prompts is not copied once per shard."""
    merge = get_statistic(name).merge
    while len(states) > 1:
        pairs = [states[i : i + 2] for i in range(0, len(states), 2)]
        states = [reduce(merge, pair) for pair in pairs]
    return states[0]
