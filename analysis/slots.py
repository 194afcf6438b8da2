"""The named tensors that flow from a model into geometry: a closed list.

An adapter fills them, a statistic sums over them, a measure may read the ones that are weights. Nothing here knows
where a tensor came from: no path, no model class, no device choice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from analysis.expert import Expert

BLOCKS = 8
"""Prompts fall into this many blocks by a hash of their text; the delete-one-block jackknife runs over them."""

PROMPT, GENERATED = 0, 1
"""Roles of a token: it was given, or the model wrote it."""

TOKEN_CLASSES = ("other", "first", "digit", "punctuation", "newline", "special")
"""Surface classes of a token, in the order of their codes."""

CLASSES_OF = ("input", "next", "predicted")
"""Whose class a token carries: its own, that of the token after it, that of the one the model predicts there."""


@dataclass(frozen=True)
class Slot:
    """A tensor's name, axes, unit and origin. An `optional` one is None to a measure where the model has none."""

    name: str
    axes: tuple[str, ...]
    unit: str
    origin: Literal["weights", "trace"]
    optional: bool = False


SLOTS: dict[str, Slot] = {
    slot.name: slot
    for slot in (
        Slot("router_weight", ("layer", "expert", "model"), "weight units", "weights"),
        Slot("router_bias", ("layer", "expert"), "score units; NaN where the router adds none", "weights"),
        Slot("gate_weight", ("layer", "expert", "hidden", "model"), "weight units", "weights"),
        Slot("up_weight", ("layer", "expert", "hidden", "model"), "weight units", "weights"),
        Slot("down_weight", ("layer", "expert", "model", "hidden"), "weight units", "weights"),
        Slot("shared_gate_weight", ("layer", "shared", "model"), "weight units", "weights", optional=True),
        Slot("shared_up_weight", ("layer", "shared", "model"), "weight units", "weights", optional=True),
        Slot("shared_down_weight", ("layer", "model", "shared"), "weight units", "weights", optional=True),
    )
}


@runtime_checkable
class Layered(Protocol):
    """A weight slot read one layer at a time, `slot[layer]`: a stacked tensor, or what loads a layer when asked."""

    def __len__(self) -> int: ...

    def __getitem__(self, layer: int, /) -> Tensor: ...


@dataclass(frozen=True)
class Shape:
    """Sizes and labels of a model's routed part, and the width of what stands beside it.

    `layers` are the decoder indices of the MoE layers ("3", "4", ...), so a leading dense layer keeps the numbering
    honest. `soft` says that every token uses every expert (k = E): there is no selection, and measures of selections
    are NaN. `shared` is the hidden width of the expert that serves every token beside the routed ones, 0 without one;
    several that are stored as one network are one.
    """

    layers: tuple[str, ...]
    experts: int
    top_k: int
    model: int
    hidden: int
    shared: int = 0

    @property
    def soft(self) -> bool:
        """True when every token is served by every expert."""
        return self.top_k == self.experts


@dataclass(frozen=True)
class Prompts:
    """The prompts behind a batch or a state: identity and label, never text.

    `whole` are the categories of all prompts where a block of them was left out, and empty elsewhere.
    """

    ids: tuple[str, ...]
    digests: tuple[str, ...]
    categories: tuple[str, ...]
    whole: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def keys(self) -> tuple[tuple[str, str], ...]:
        """What makes a prompt itself: its id and the digest of its text."""
        return tuple(zip(self.ids, self.digests, strict=True))

    @property
    def blocks(self) -> tuple[int, ...]:
        """Block of each prompt, from its text alone, so a copy of a prompt falls into the same block."""
        return tuple(int(digest[:8], 16) % BLOCKS for digest in self.digests)

    def take(self, rows: list[int]) -> Prompts:
        """The prompts at these positions, in this order."""
        return Prompts(*(tuple(column[r] for r in rows) for column in (self.ids, self.digests, self.categories)))


def text_digest(text: str) -> str:
    """SHA-256 of a prompt's text: what blocks and keys are made of.

    Returns:
        64 hexadecimal digits.

    Source:
        Ours: a prompt is its text, whatever it is called.
    """
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class TokenKeys:
    """Who each captured token is. `prompt` indexes the batch's `Prompts`; padding never gets here.

    `next` is the following token id of the same prompt or -1 at its end; `predicted` the model's argmax there;
    `token_class` codes of `TOKEN_CLASSES` for each of `CLASSES_OF`, -1 where there is no such token or no text to tell;
    `span` the character range [start, end) in the prompt's text, (-1, -1) for tokens the text does not hold.
    """

    prompt: Int[Tensor, " token"]
    position: Int[Tensor, " token"]
    role: Int[Tensor, " token"]
    token: Int[Tensor, " token"]
    next: Int[Tensor, " token"]
    predicted: Int[Tensor, " token"]
    token_class: Int[Tensor, "token of"]
    span: Int[Tensor, "token 2"]

    def __len__(self) -> int:
        return self.prompt.shape[0]


@dataclass(frozen=True)
class RouteBatch:
    """All MoE layers' routing of one batch, read from the model and never ranked anew.

    `indices` may name experts >= `shape.experts` (identity experts). `served` is False where capacity dropped the
    selection or a skip expert took it. `margins` is the gap between the k-th and the next score, in the units the
    router ranks by (bias included); NaN where k = E or the router hides its scores.
    """

    shape: Shape
    prompts: Prompts
    keys: TokenKeys
    indices: Int[Tensor, "layer token k"]
    weights: Float[Tensor, "layer token k"]
    served: Bool[Tensor, "layer token k"]
    margins: Float[Tensor, "layer token"]


@dataclass(frozen=True)
class LayerBatch:
    """One MoE layer of one batch: what its router and its experts saw and gave.

    `logits` are the router's raw scores (NaN where hidden); `probabilities` sum to 1 over experts. `output_norms` are
    |f_e(x)| of each served (token, slot), NaN where not served. The rest is None unless a statistic needs it:
    `output_extremes` the least and the largest component of f_e(x), NaN where not served; `experts` the routed experts
    (views) and `shared` the one that every token uses; `gate_in` and `up_in` what goes into phi at each (token, slot),
    NaN where not served, `gate_in` None for experts without a gate; `task_gradient` the gradient of the batch's summed
    next-token cross-entropy by `logits`. `shared_weight` is what the shared expert's
    output is multiplied by, `shared_norms` the length of that output; None, as `shared` is, in a model without one
    (`shape.shared` of 0).
    """

    shape: Shape
    prompts: Prompts
    keys: TokenKeys
    layer: int
    router_input: Float[Tensor, "token model"]
    expert_input: Float[Tensor, "token model"]
    logits: Float[Tensor, "token expert"]
    probabilities: Float[Tensor, "token expert"]
    indices: Int[Tensor, "token k"]
    weights: Float[Tensor, "token k"]
    served: Bool[Tensor, "token k"]
    margins: Float[Tensor, " token"]
    output_norms: Float[Tensor, "token k"]
    output_extremes: Float[Tensor, "token k 2"] | None = None
    experts: Sequence[Expert] | None = None
    shared: Expert | None = None
    gate_in: Float[Tensor, "token k hidden"] | None = None
    up_in: Float[Tensor, "token k hidden"] | None = None
    task_gradient: Float[Tensor, "token expert"] | None = None
    shared_weight: Float[Tensor, " token"] | None = None
    shared_norms: Float[Tensor, " token"] | None = None


def block_of_token(prompts: Prompts, keys: TokenKeys) -> Int[Tensor, " token"]:
    """The block each token's prompt belongs to.

    Returns:
        0 to BLOCKS - 1.

    Source:
        Ours: whole prompts are left out together, since tokens of one prompt are alike.
    """
    return torch.tensor(prompts.blocks, dtype=torch.long, device=keys.prompt.device)[keys.prompt]
