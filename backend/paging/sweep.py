"""A capture of a paged model: all prompts through one layer, then all through the next, each layer read once.

What is heard, and what batches are made of it, is what `backend.capture` does with a model that is in memory: the same
micro-batches, the same hooks, the same functions. A layer's batches come while its weights are there; `predicted` of
their tokens is -1, for the model has not come to its end yet. Routing of all layers comes last, with it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from analysis.errors import GeometryError
from analysis.slots import LayerBatch, TokenKeys
from backend.adapters.law import TOKENS, verdict
from backend.adapters.watch import Trace, watch
from backend.capture import (
    NO_SHARED,
    Captured,
    CaptureOptions,
    Run,
    begun,
    law_tokens,
    notes_of,
    predicted_at,
    remember,
    verified,
)
from backend.capture.assemble import Routed, route_batch, routed_of
from backend.capture.tokens import (
    Encoded,
    PromptLike,
    TokenClasses,
    batches,
    counted_rows,
    keys_of,
    padded,
    parted,
    prompts_of,
)
from backend.paging.anatomy import PagedAnatomy
from backend.paging.law import Law
from backend.paging.lockstep import Lockstep, Walk
from backend.paging.skeleton import WHOLE, Unpageable
from backend.paging.unfinished import Unfinished

ON_META = ("meta tensor", "device meta", "meta device", "on the meta")


@dataclass(frozen=True)
class Shard:
    """Some prompts that are captured together, and what of them is asked for; batched as if they were alone."""

    prompts: Sequence[PromptLike]
    needs: frozenset[str]


@dataclass(frozen=True)
class Stepped:
    """A micro-batch has gone through one more decoder layer. `layers` are the batches of the MoE layers in it.

    Whoever reads them takes them out: they may hold the layer's experts, which have to go when it leaves.
    """

    shard: int
    decoder: int
    tokens: int
    layers: list[LayerBatch]


@dataclass(eq=False)
class Micro:
    """A micro-batch of a shard and its pass; `routed` by MoE layer."""

    shard: int
    run: Run
    batch: list[Encoded]
    full: int
    notes: tuple[str, ...]
    classes: TokenClasses
    routed: dict[int, Routed] = field(default_factory=dict)
    traces: list[Trace] = field(default_factory=list)
    walk: Walk = field(init=False)

    def __post_init__(self) -> None:
        device = self.run.model.device
        self._ids, self._mask = (t.to(device) for t in padded(self.batch[: self.full], self.run.pad()))
        self._rows = counted_rows(self._mask, self.run.options.first_token)
        self.begin()
        blank = torch.full((len(self._rows),), -1, device=device)
        self.tokens = prompts_of(self.batch), self._keys(blank)

    def __len__(self) -> int:
        return len(self._rows)

    def begin(self) -> None:
        """A new pass, of which nothing was heard."""
        self.walk, self.routed = Walk(self._forward, self._watched), {}

    @torch.no_grad()
    def _forward(self) -> Tensor:
        out = self.run.model(input_ids=self._ids, attention_mask=self._mask, use_cache=False)
        return predicted_at(out, self._rows)

    @contextmanager
    def _watched(self, decoder: int) -> Iterator[None]:
        anatomy = self.run.anatomy
        assert isinstance(anatomy, PagedAnatomy)
        inside = tuple(anatomy.layers[n] for n in anatomy.inside(decoder))
        with watch(replace(anatomy, layers=inside), self._rows, self._mask.numel(), self.run.extra) as self.traces:
            yield

    def heard(self, decoder: int) -> list[LayerBatch]:
        """What the MoE layers of this decoder layer did, as batches where somebody reads them."""
        anatomy, found = self.run.anatomy, []
        assert isinstance(anatomy, PagedAnatomy)
        for n, trace in zip(anatomy.inside(decoder), self.traces, strict=True):
            self.routed[n] = routed_of(anatomy.layers[n], trace)
            if self.run.needs - {"routes"}:
                found.append(self.run.layer_batch(n, self.tokens, trace, self.routed[n]))
        self.traces = []
        return found

    def captured(self, anatomy: PagedAnatomy) -> Captured:
        """The routing of all layers, once the pass has ended."""
        routed = [self.routed.get(n) or routed_of(layer, Trace()) for n, layer in enumerate(anatomy.layers)]
        keys = self._keys(self.walk.result)
        return Captured(route_batch(anatomy.shape, self.tokens[0], keys, routed), (), self.notes)

    def _keys(self, predicted: Tensor) -> TokenKeys:
        return keys_of(self.batch, self.classes, predicted, self.run.options.first_token)


class Sweep:
    """One read of the checkpoint for some shards. `steps`, to its end; then `captured` of each shard.

    `left` is called when all have left a layer, before that is written down in `unfinished`.
    """

    def __init__(
        self,
        anatomy: PagedAnatomy,
        tokenizer: Any,
        shards: Sequence[Shard],
        options: CaptureOptions,
        unfinished: Unfinished | None = None,
        left: Callable[[], None] = lambda: None,
    ):
        self._anatomy, self._unfinished, self._left = anatomy, unfinished, left
        self._pager = anatomy.pager
        self._micros = [
            micro
            for number, shard in enumerate(shards)
            for micro in _micros(number, shard, anatomy, tokenizer, options)
        ]
        known = verified(anatomy)
        self._law = None if known else Law(anatomy, law_tokens(self._micros[0].batch[0], self._pager.model.device))
        if known and not known.keeps_shared:
            self._leave_shared()

    @property
    def layers(self) -> int:
        """Decoder layers to go through."""
        return len(self._pager.layers)

    @property
    def tokens(self) -> int:
        """Tokens of all shards."""
        return sum(map(len, self._micros))

    def steps(self) -> Iterator[Stepped]:
        """Yields after each micro-batch in each layer, the layer's weights being there.

        Raises:
            Unpageable: If the model reads weights of a layer while that layer does not run.
            AdapterLies: As `capture`.
        """
        if self._unfinished and self._unfinished.done and not self._restored():
            self._begin()
        if not (yield from self._through(self._unfinished.done if self._unfinished else 0)):
            self._begin()
            yield from self._through(0)
        if self._law is not None:
            remember(self._anatomy, verdict(TOKENS, self._law.checks))

    def _through(self, done: int) -> Generator[Stepped, None, bool]:
        """All layers after the first `done`; False, and nothing run, where they are not given what they were given."""
        with Lockstep(list(self._pager.layers), self._walks(), done) as lock:
            try:
                for walk in lock.walks:
                    lock.start(walk)
                if done and self._unfinished and not self._unfinished.same(lock.walks):
                    return False
                for decoder in range(done, self.layers):
                    yield from self._layer(lock, decoder)
            except (RuntimeError, NotImplementedError) as error:
                if not any(said in str(error) for said in ON_META):
                    raise
                kind = self._anatomy.model_type
                raise Unpageable(f"{kind} reads weights of a layer while that layer does not run: {WHOLE}.") from error
            finally:
                self._pager.forget()
        return True

    def captured(self, shard: int) -> Iterator[Captured]:
        """The micro-batches of a shard with the routing of all layers, in the order in which they were run."""
        for micro in self._micros:
            if micro.shard == shard:
                anatomy = micro.run.anatomy
                assert isinstance(anatomy, PagedAnatomy)
                yield micro.captured(anatomy)

    def _layer(self, lock: Lockstep, decoder: int) -> Iterator[Stepped]:
        with self._pager.held(decoder):
            self._pager.read_ahead(decoder + 1)
            if self._law is not None and self._law.walk.at == decoder:
                lock.step(self._law.walk)
                self._law.heard(decoder)
                if self._law.checks and not self._law.checks[0].keeps_shared:
                    self._leave_shared()
            for micro in self._micros:
                if micro.walk.at == decoder:
                    lock.step(micro.walk)
                    yield Stepped(micro.shard, decoder, len(micro), micro.heard(decoder))
        self._left()
        if self._unfinished and decoder + 1 < self.layers:
            self._unfinished.keep(decoder, lock.walks, self._micros, self._law.checks if self._law else [])

    def _walks(self) -> list[Walk]:
        return [*([self._law.walk] if self._law else []), *(micro.walk for micro in self._micros)]

    def _begin(self) -> None:
        """As if nothing had been run."""
        for micro in self._micros:
            micro.begin()
        if self._law is not None:
            self._law = Law(self._anatomy, law_tokens(self._micros[0].batch[0], self._pager.model.device))

    def _restored(self) -> bool:
        assert self._unfinished is not None
        checks = self._unfinished.restore(self._walks(), self._micros, self._pager.model.device)
        if checks is None:
            return False
        if self._law is not None:
            self._law.checks = checks
        if checks and not checks[0].keeps_shared:
            self._leave_shared()
        return True

    def _leave_shared(self) -> None:
        first: set[int] = set()
        for micro in self._micros:
            if NO_SHARED in micro.notes or not micro.run.anatomy.shape.shared:
                continue
            micro.run = replace(micro.run, anatomy=micro.run.anatomy.without_shared())
        for micro in self._micros:
            if micro.shard not in first and NO_SHARED not in micro.notes:
                micro.notes = (NO_SHARED, *micro.notes)
            first.add(micro.shard)


def _micros(
    number: int, shard: Shard, anatomy: PagedAnatomy, tokenizer: Any, options: CaptureOptions
) -> Iterator[Micro]:
    """The batches that a capture of these prompts alone would run."""
    if options.generate or "backward" in shard.needs:
        what = "writes no text: each token" if options.generate else "gives no gradients: they"
        raise GeometryError(f"a paged model {what} would need all layers again; {WHOLE}")
    run, encoded = begun(anatomy.pager.model, anatomy, tokenizer, shard.prompts, options, shard.needs)
    full, empty = parted(encoded, options.alone)
    classes = TokenClasses(tokenizer)
    for batch in batches(full, run.budget(), 0):
        whole = [*batch, *empty]
        yield Micro(number, run, whole, len(batch), notes_of(whole, len(batch)), classes)
        empty = []
