"""What a checkpoint is, without its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from backend.checkpoints.labels import place


@dataclass(frozen=True)
class Checkpoint:
    """Identity and sizes of one checkpoint.

    `error` is a sentence where the folder cannot be used; then the sizes are zero. `folder` is where its files lie on
    this machine and `stamp` their sizes and times when they were read: a load that finds another stamp refuses.
    `dtype` is what most weights are stored in, `precision` what they are held in once loaded.
    `variant` is what its name says of how it is held, behind the last @: a precision, an attention (`variants`).
    `random_weights` is what its config says of itself: made to try things on, never trained.
    `fingerprint` covers config and weights; None while the files of a large checkpoint have not been hashed yet.
    `weight_bytes` is the size of the weights as stored. With `fetched` false they are still on the hub, which says
    their digests, so the fingerprint is known; the first question that reads them fetches them.
    An imported trace has no model: `trace` is the format it came in, `prompts` the set that it is of, `statistics` what
    it decides, `notes` what it says of itself, and `folder` the file that the store keeps of it.
    `step`, `stage` and `tokens` say where in its run it stands, as far as its name or the run's own files tell.
    """

    id: str
    source: str
    folder: str
    run: str | None = None
    step: int | None = None
    revision: str | None = None
    architecture: str | None = None
    router: str | None = None
    dense: bool = False
    layers: int = 0
    moe_layers: int = 0
    experts: int = 0
    top_k: int = 0
    soft: bool = False
    model: int = 0
    hidden: int = 0
    dtype: str | None = None
    precision: str | None = None
    attention: str | None = None
    variant: str | None = None
    parameters: int = 0
    memory_bytes: int = 0
    weight_bytes: int = 0
    fetched: bool = True
    fingerprint: str | None = None
    adapter: str | None = None
    random_weights: bool = False
    verified: bool = False
    registered: bool = False
    error: str | None = None
    stamp: str = ""
    trace: str | None = None
    prompts: str | None = None
    statistics: tuple[str, ...] = ()
    stage: str | None = None
    tokens: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def place(self) -> tuple[tuple[int, ...], int, int]:
        """Its place in the order of its run."""
        return place(self.stage, self.step, self.tokens)

    def gives(self, statistic: str) -> bool:
        """Whether this statistic can be had of it: of a model any, of a trace those it decides."""
        return self.trace is None or statistic in self.statistics

    def to_json(self) -> dict[str, Any]:
        """What a client is told: everything but where the files lie and when they changed."""
        told = {name: value for name, value in asdict(self).items() if name not in ("folder", "stamp")}
        return told | {"statistics": list(self.statistics), "notes": list(self.notes)}

    @classmethod
    def from_kept(cls, kept: Mapping[str, Any]) -> Checkpoint:
        """From all its fields as the store keeps them, lists for tuples."""
        tuples = {name: tuple(kept.get(name, ())) for name in ("statistics", "notes")}
        return cls(**{**kept, **tuples})
