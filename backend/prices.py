"""What a question takes before it is begun: memory by its parts, how the model is held, time, and what would fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from analysis.slots import Shape
from analysis.statistic import Statistic, statistics
from backend.capture import BACKWARD, GATE_BYTES, CaptureOptions
from backend.checkpoints import Checkpoint
from backend.errors import TooLarge
from backend.paging.choice import WEIGHTS_SHARE, Held, number, pages, places, weights_bytes
from backend.prompts import Prompt
from backend.settings import Paging
from backend.sizes import gigabytes

CHARACTERS_A_TOKEN = 4
"""For prices only; the pass itself counts tokens."""
LIVE_COPIES = 8
"""Tensors of a batch's width alive at once in one layer of a pass under hooks, for prices only."""
DEAR = frozenset({"gate", "experts", "backward"})
"""Needs that make a pass dearer: what has them is run where it is asked for, and never along the way."""

HOW = {
    "tokens": f"{CHARACTERS_A_TOKEN} characters a token",
    "memory": f"weights and states by their sizes, a batch as {LIVE_COPIES} tensors of a layer's width",
}
"""How what is no measurement was estimated."""


@dataclass(frozen=True)
class Machine:
    """Where models run: bytes that models and passes may take, and those of each accelerator if there are any."""

    device: str
    memory: int
    accelerators: tuple[int, ...] = ()
    paging: Paging = "auto"

    @property
    def room(self) -> int:
        """What one model and its passes may take: no more than the accelerator has, where there is one."""
        return min(self.memory, self.accelerators[number(self.device)]) if self.accelerators else self.memory

    @property
    def everywhere(self) -> int:
        """What a model spread over all of its devices may take, with its passes."""
        return self.memory + sum(self.accelerators)

    @property
    def beside_weights(self) -> int:
        """What a batch may take on the accelerator of a spread model."""
        return int(self.room * (1 - WEIGHTS_SHARE))


@dataclass(frozen=True)
class Need:
    """Bytes at the peak, by what takes them; `states` by statistic; `held` says how the models are."""

    weights: int = 0
    batch: int = 0
    states: Mapping[str, int] = field(default_factory=dict)
    held: Held = "resident"

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.batch + sum(self.states.values())

    def __add__(self, other: Need) -> Need:
        names = [*self.states, *(name for name in other.states if name not in self.states)]
        states = {name: self.states.get(name, 0) + other.states.get(name, 0) for name in names}
        ways: tuple[Held, ...] = ("paged", "device_map", "resident")
        held: Held = next(way for way in ways if way in (self.held, other.held))
        return Need(self.weights + other.weights, self.batch + other.batch, states, held)

    def fits(self, machine: Machine) -> bool:
        """Whether the machine has room for it, held so."""
        if self.held == "device_map":
            return self.total <= machine.everywhere and self.batch <= machine.beside_weights
        return self.total <= machine.room


@dataclass(frozen=True)
class Price:
    """What an answer costs before it is begun. `tokens` is an estimate from characters."""

    passes: int
    tokens: int
    need: Need
    download_bytes: int = 0

    @property
    def memory_bytes(self) -> int:
        """At the peak."""
        return self.need.total


class Paced(Protocol):
    """The part of a store that knows how long earlier passes took."""

    def paces(self, device: str) -> list[tuple[str, int, float, float]]:
        """Fingerprint, tokens, seconds and active parameters of passes that ran on this device, by checkpoint."""
        ...


def need(
    checkpoint: Checkpoint,
    names: Sequence[str],
    prompts: Sequence[Prompt],
    capture: CaptureOptions,
    machine: Machine | None = None,
) -> Need:
    """Weights, one batch under hooks, and the states of these statistics."""
    asked = [statistics()[name] for name in names]
    batch = _batch_bytes(checkpoint, frozenset().union(*(statistic.needs for statistic in asked)), prompts, capture)
    states = {statistic.name: state_bytes(statistic, checkpoint, prompts, capture) for statistic in asked}
    if machine is None:
        return Need(checkpoint.memory_bytes, batch, states)
    policy = (checkpoint, machine.paging, machine.memory)
    several = places(*policy, machine.device, machine.accelerators) is not None
    held: Held = "paged" if pages(*policy) else "device_map" if several else "resident"
    return Need(weights_bytes(*policy), batch, states, held)


def _batch_bytes(
    checkpoint: Checkpoint, needs: frozenset[str], prompts: Sequence[Prompt], capture: CaptureOptions
) -> int:
    width = checkpoint.model + checkpoint.experts + checkpoint.top_k * checkpoint.hidden
    rows = max(capture.batch_tokens, longest(prompts, capture))
    batch = rows * width * 4 * LIVE_COPIES
    if "gate" in needs:
        batch += min(GATE_BYTES, rows * checkpoint.moe_layers * checkpoint.top_k * 2 * checkpoint.hidden * 4)
    if "backward" in needs:  # what every layer did is kept, of a smaller batch
        batch += batch // BACKWARD * checkpoint.layers
    return batch


def longest(prompts: Iterable[Prompt], capture: CaptureOptions) -> int:
    """About how many tokens the longest of these prompts has: a batch holds one at least."""
    return max((tokens([prompt], capture) for prompt in prompts), default=0)


def state_bytes(
    statistic: Statistic, checkpoint: Checkpoint, prompts: Sequence[Prompt], capture: CaptureOptions
) -> int:
    """Bytes of a statistic's state over these prompts."""
    shape = Shape(
        tuple(str(layer) for layer in range(checkpoint.moe_layers)),
        checkpoint.experts,
        checkpoint.top_k,
        checkpoint.model,
        checkpoint.hidden,
    )
    return statistic.bytes(shape, len(prompts), tokens(prompts, capture))


def tokens(prompts: Iterable[Prompt], capture: CaptureOptions) -> int:
    """About how many tokens these prompts have."""
    limit, extra = capture.max_tokens, capture.generate
    return sum(min(max(len(prompt.text) // CHARACTERS_A_TOKEN, 1), limit) + extra for prompt in prompts)


def check(what: str, wanted: Need, machine: Machine, otherwise: Callable[[], Sequence[tuple[str, Need]]]) -> None:
    """Raises `TooLarge` where it does not fit as it is held here: whole, spread, or a layer at a time.

    `otherwise` names what could be asked instead, each with its need; those that fit are told.
    """
    if wanted.fits(machine):
        return
    parts = {"weights": wanted.weights, "one batch": wanted.batch, **wanted.states}
    told = ", ".join(f"{name} {gigabytes(size)}" for name, size in parts.items() if size)
    fits = [f"{other} ({gigabytes(need.total)})" for other, need in otherwise() if need.fits(machine)]
    way = f"What would fit: {'; '.join(fits)}." if fits else "Nothing that could be asked instead would fit."
    raise TooLarge(
        f"{what} needs about {gigabytes(wanted.total)} ({told}); the budget is {gigabytes(machine.room)}. {way} "
        "Or raise MOE_GEOMETRY_MEMORY (bytes) if the machine has more, or ask a smaller checkpoint."
    )


def most_prompts(prompts: Sequence[Prompt], fits: Callable[[Sequence[Prompt]], bool]) -> int:
    """The largest number of first prompts that fit; what they take grows with them."""
    low, high = 0, len(prompts)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(prompts[:middle]) else (low, middle - 1)
    return low


def seconds(running: Sequence[tuple[Checkpoint, int]], device: str, kept: Paced) -> tuple[float | None, str]:
    """How long passes over these tokens would take, and where that is known from; None where nothing says it."""
    if not running:
        return 0.0, "no pass is needed"
    known = kept.paces(device)
    own = {fingerprint: count / spent for fingerprint, count, spent, _ in known if spent}
    work = sum(2 * active * count for _, count, spent, active in known if spent and active)
    rate = work / sum(spent for _, _, spent, active in known if spent and active) if work else 0.0
    total, scaled = 0.0, False
    for checkpoint, count in running:
        known_pace = own.get(checkpoint.fingerprint or "")
        if known_pace is None and not rate:
            return None, f"not known yet: no pass was kept that ran on {device}"
        scaled |= known_pace is None
        total += count / known_pace if known_pace else 2 * active_parameters(checkpoint) * count / rate
    if scaled:
        pace = f"{rate / 1e9:,.3g} GFLOP/s in earlier passes on {device}"
        return total, f"2 operations a token and active parameter, {pace}"
    return total, f"the pace of earlier passes of the same checkpoint on {device}"


def active_parameters(checkpoint: Checkpoint) -> float:
    """Parameters that one token meets: all but the experts it is not sent to, a gated expert having three matrices."""
    idle = checkpoint.moe_layers * (checkpoint.experts - checkpoint.top_k) * 3 * checkpoint.model * checkpoint.hidden
    return float(max(checkpoint.parameters - idle, 0))


def told(
    price: Price, machine: Machine, time: tuple[float | None, str], dtypes: Iterable[str | None], batch_tokens: int
) -> dict[str, Any]:
    """A price as clients see it; `dtypes` are those of the models that have to be loaded."""
    loads = sorted({dtype for dtype in dtypes if dtype})
    return {
        "passes": price.passes,
        "tokens": price.tokens,
        "memory_bytes": price.memory_bytes,
        "memory": {"weights": price.need.weights, "batch": price.need.batch, "states": dict(price.need.states)},
        "batch_tokens": batch_tokens,
        "download_bytes": price.download_bytes,
        "device": machine.device,
        "dtype": ", ".join(loads) or None,
        "held": price.need.held if loads else None,
        "seconds": time[0],
        "how": HOW | {"seconds": time[1]},
    }
