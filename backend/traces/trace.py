"""An imported trace: what a file said of routing, as the batches and states that a model's pass would give."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from analysis.slots import BLOCKS, CLASSES_OF, Prompts, RouteBatch, Shape, TokenKeys
from analysis.statistic import State
from analysis.statistic import get as get_statistic
from backend.errors import Refusal
from backend.prompts import Prompt, PromptSet
from backend.traces.draft import Draft

PIECE = 16_384
"""Tokens of a batch: one-hot rows of all layers stay small."""

OF_ROUTES = ("prompt_counts", "coactivation_counts", "layer_transitions", "token_routes")
"""Statistics that the choices of each token decide."""

_NARROW = {"prompt": torch.int32, "position": torch.int32, "role": torch.uint8, "token": torch.int32}


@dataclass(frozen=True)
class Trace:
    """Routes or counts of prompts. `keys` are the prompts' ids and digests; `arrays` as in `Draft`."""

    shape: Shape
    keys: tuple[tuple[str, str], ...]
    arrays: Mapping[str, Tensor]
    notes: tuple[str, ...] = ()

    @property
    def routed(self) -> bool:
        """Whether each token's choices are known."""
        return "indices" in self.arrays

    @property
    def statistics(self) -> tuple[str, ...]:
        """The statistics that it decides."""
        if self.routed:
            return OF_ROUTES
        return ("prompt_counts", "centroid_sums") if "input" in self.arrays else ("prompt_counts",)

    def check(self, prompts: Sequence[Prompt], name: str, own: str | None) -> None:
        """Raises `Refusal` where a prompt is none of the trace's."""
        known = set(self.keys)
        strange = next((p for p in prompts if (p.id, p.digest) not in known), None)
        if strange:
            raise Refusal(
                f"{name} is an imported trace and has no route of the prompt {strange.id!r}; ask it on the prompts "
                f"that it was imported with: {own}."
            )

    def tokens(self, prompts: Sequence[Prompt]) -> int:
        """How many tokens these prompts have."""
        if self.routed:
            return len(self._rows(prompts))
        return int(self.arrays["tokens"][self._places(prompts)].sum())

    def batches(self, prompts: Sequence[Prompt]) -> Iterator[RouteBatch]:
        """Their tokens in pieces, as a pass would give them; nothing where tokens are not known."""
        if not self.routed:
            return
        held = _held(prompts)
        place = torch.full((len(self.keys),), -1, dtype=torch.int64)
        place[self._places(prompts)] = torch.arange(len(prompts))
        for rows in self._rows(prompts).split(PIECE):
            yield self._batch(held, place, rows)

    def counted(self, statistic: str, prompts: Sequence[Prompt]) -> State:
        """The state of these prompts of a trace of counts."""
        places = self._places(prompts)
        held = _held(prompts)
        arrays = self._prompt_counts(places) if statistic == "prompt_counts" else self._centroids(places, held)
        return State(statistic, self.shape, held, arrays)

    def to_bytes(self) -> bytes:
        """As one safetensors file; equal traces give equal bytes."""
        about = {"shape": asdict(self.shape), "keys": self.keys, "notes": self.notes}
        tensors = {n: t.to(_NARROW.get(n, t.dtype)).contiguous() for n, t in sorted(self.arrays.items())}
        return safetensors.torch.save(tensors, metadata={"trace": json.dumps(about, sort_keys=True)})

    @classmethod
    def from_bytes(cls, data: bytes) -> Trace:
        """From such a file."""
        size = int.from_bytes(data[:8], "little")
        about: dict[str, Any] = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["trace"])
        shape = Shape(**(about["shape"] | {"layers": tuple(about["shape"]["layers"])}))
        keys = tuple((name, digest) for name, digest in about["keys"])
        return cls(shape, keys, safetensors.torch.load(data), tuple(about["notes"]))

    @cached_property
    def _row(self) -> dict[tuple[str, str], int]:
        return {key: row for row, key in enumerate(self.keys)}

    @cached_property
    def _next(self) -> Tensor:
        """The id of the token behind each, -1 at a prompt's end and where no id is known."""
        prompt, position, token = (self.arrays[n].long() for n in ("prompt", "position", "token"))
        following = torch.full_like(token, -1)
        goes_on = (prompt[1:] == prompt[:-1]) & (position[1:] == position[:-1] + 1)
        following[:-1] = torch.where(goes_on, token[1:], -1)
        return following

    def _places(self, prompts: Sequence[Prompt]) -> Tensor:
        return torch.tensor([self._row[p.id, p.digest] for p in prompts], dtype=torch.int64)

    @cached_property
    def _starts(self) -> Tensor:
        """Where the tokens of each prompt begin; they stand in the order of the prompts."""
        prompt = self.arrays["prompt"].long().contiguous()
        return torch.searchsorted(prompt, torch.arange(len(self.keys) + 1))

    def _rows(self, prompts: Sequence[Prompt]) -> Tensor:
        starts = self._starts
        return torch.cat([torch.arange(int(starts[p]), int(starts[p + 1])) for p in self._places(prompts).tolist()])

    def _batch(self, held: Prompts, place: Tensor, rows: Tensor) -> RouteBatch:
        read = {n: self.arrays[n][rows].long() for n in ("prompt", "position", "role", "token")}
        indices = self.arrays["indices"][rows].long().permute(1, 0, 2).contiguous()
        weights = self.arrays.get("weights")
        unknown = torch.full_like(read["token"], -1)
        keys = TokenKeys(
            prompt=place[read["prompt"]],
            position=read["position"],
            role=read["role"],
            token=read["token"],
            next=self._next[rows],
            predicted=unknown,
            token_class=unknown[:, None].expand(-1, len(CLASSES_OF)).contiguous(),
            span=unknown[:, None].expand(-1, 2).contiguous(),
        )
        nowhere = torch.full(indices.shape, torch.nan)
        return RouteBatch(
            shape=self.shape,
            prompts=held,
            keys=keys,
            indices=indices,
            weights=nowhere if weights is None else weights[rows].permute(1, 0, 2).contiguous(),
            served=torch.ones(indices.shape, dtype=torch.bool),
            margins=torch.full(indices.shape[:2], torch.nan),
        )

    def _prompt_counts(self, places: Tensor) -> dict[str, Tensor]:
        selected = self.arrays["selected"][places]
        unknown = torch.full(selected.shape, torch.nan, dtype=torch.float64)
        tokens = self.arrays["tokens"][places]
        return {"selected": selected, "served": selected.clone(), "weights": unknown, "tokens": tokens}

    def _centroids(self, places: Tensor, held: Prompts) -> dict[str, Tensor]:
        """Sums over the tokens of each block; a token's input stands in the sums of k experts."""
        empty = get_statistic("centroid_sums").empty(self.shape).arrays
        found = {name: array.clone() for name, array in empty.items()}
        inputs, selected = self.arrays["input"][places].double(), self.arrays["selected"][places]
        for row, block in enumerate(held.blocks):
            found["served"][block] += selected[row]
            found["input"][block] += inputs[row]
            found["seen"][block] += int(self.arrays["tokens"][places[row]])
            found["seen_input"][block] += inputs[row].sum(1) / self.shape.top_k
        assert len(found["seen"]) == BLOCKS
        return found | {name: torch.full_like(found[name], torch.nan) for name in ("weight", "weighted_input")}


def bound(draft: Draft, prompts: PromptSet, where: str) -> Trace:
    """The draft's trace on these prompts, matched by id.

    Raises:
        Refusal: The file names a prompt that the set lacks, or the other way round.
    """
    by_id = {p.id: p for p in prompts.prompts}
    strange = [name for name in draft.ids if name not in by_id]
    if strange:
        raise Refusal(
            f"{where} has routes of {len(strange)} prompts that the set {prompts.name} lacks, the first of them "
            f"{strange[0]!r}; name the set they come from, or leave --prompts out."
        )
    held = set(draft.ids)
    unseen = [p.id for p in prompts.prompts if p.id not in held]
    if unseen:
        raise Refusal(
            f"{where} has no route of {len(unseen)} of the {len(by_id)} prompts of {prompts.name}, the first of them "
            f"{unseen[0]!r}; name a set of just the prompts that it holds."
        )
    arrays = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in draft.arrays.items()}
    if "indices" in arrays:
        arrays = _in_order(arrays)
    shape = Shape(draft.layers, draft.experts, draft.top_k, draft.model, 0)
    return Trace(shape, tuple((name, by_id[name].digest) for name in draft.ids), arrays, draft.notes)


def _held(prompts: Sequence[Prompt]) -> Prompts:
    rows = [(p.id, p.digest, p.category) for p in prompts]
    return Prompts(*(tuple(column) for column in zip(*rows, strict=True)))


def _in_order(arrays: dict[str, Tensor]) -> dict[str, Tensor]:
    """By prompt and position."""
    order = arrays["position"].argsort(stable=True)
    order = order[arrays["prompt"][order].argsort(stable=True)]
    arrays = {name: array[order] for name, array in arrays.items()}
    return arrays | {"indices": arrays["indices"].to(torch.int32)}
