"""A model, edited or not, over prompts: the loss of every token, what the model predicts there, and who was chosen."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from analysis.errors import GeometryError
from analysis.slots import Prompts, Shape
from backend.adapters import adapt
from backend.capture import Captured, CaptureOptions, capture
from backend.capture.tokens import PromptLike
from backend.edits.changes import Changes, applied

NOBODY = -1
"""In `chosen`, a slot that no expert served."""


@dataclass(frozen=True, eq=False)
class Trial:
    """Tokens in the order they were run, which is the same for every edit of one model.

    `loss` is the next token's cross-entropy in nats, NaN where none follows; `chosen` is [layer, token, slot].
    """

    shape: Shape
    prompts: Prompts
    prompt: Tensor
    position: Tensor
    token: Tensor
    following: Tensor
    predicted: Tensor
    loss: Tensor
    chosen: Tensor
    notes: tuple[str, ...]

    @property
    def usage(self) -> Tensor:
        """Selections by layer and expert."""
        experts = self.shape.experts
        return torch.stack([torch.bincount(row[row >= 0].long(), minlength=experts) for row in self.chosen])

    def by_prompt(self) -> tuple[Tensor, Tensor]:
        """Summed loss and counted tokens of each prompt."""
        there = ~self.loss.isnan()
        sums = torch.zeros(len(self.prompts), dtype=torch.float64).index_add_(
            0, self.prompt[there], self.loss[there].double()
        )
        return sums, torch.bincount(self.prompt[there], minlength=len(self.prompts))


def trial(
    model: Any, tokenizer: Any, prompts: Sequence[PromptLike], options: CaptureOptions, changes: Changes
) -> Generator[int, None, Trial]:
    """Yields the tokens of each batch; between batches the model is as it was, since others use it then.

    Raises:
        GeometryError: If the model predicts no token.
        AdapterLies: If the edited model does other than an adapter says.
    """
    with applied(changes):
        anatomy = adapt(model)
    # Its first pass under an edit holds the edited model to the block law.
    batches = capture(model, anatomy, tokenizer, prompts, options, frozenset({"routes"}))
    parts: list[tuple[Captured, Tensor]] = []
    while True:
        with applied(changes), _losses(model) as seen:
            captured = next(batches, None)
        if captured is None:
            return _joined(anatomy.shape, parts)
        if not seen:
            raise GeometryError(f"{type(model).__name__} has no language-model head, so there is no perplexity")
        parts.append((captured, seen[-1]))
        yield len(seen[-1])


@contextmanager
def _losses(model: Any) -> Iterator[list[Tensor]]:
    """Loss of each token that is no padding, in the order of the batch, of every pass inside; the last is the batch's.

    The model's output is left as it is.
    """
    seen: list[Tensor] = []

    def keep(module: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        logits = getattr(output, "logits", None)
        if logits is None:
            return
        ids = kwargs["input_ids"]
        mask = kwargs.get("attention_mask")
        real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
        loss = torch.full(ids.shape, torch.nan, dtype=torch.float32, device=logits.device)
        found = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none")
        loss[:, :-1] = found.view(len(ids), -1)
        loss[:, :-1][~real[:, 1:]] = torch.nan
        seen.append(loss[real].cpu())

    handle = model.register_forward_hook(keep, with_kwargs=True)
    try:
        yield seen
    finally:
        handle.remove()


def _joined(shape: Shape, parts: Sequence[tuple[Captured, Tensor]]) -> Trial:
    routes = [captured.route for captured, _ in parts if captured.route is not None]
    starts = torch.tensor([0, *(len(route.prompts) for route in routes)]).cumsum(0).tolist()
    keys = {
        name: torch.cat([getattr(route.keys, name).cpu() for route in routes])
        for name in ("position", "token", "next", "predicted")
    }
    chosen = [
        torch.where(route.served & (route.weights != 0), route.indices, NOBODY).to(torch.int16).cpu()
        for route in routes
    ]
    every = [route.prompts for route in routes]
    return Trial(
        shape=shape,
        prompts=Prompts(*(tuple(x for p in every for x in getattr(p, n)) for n in ("ids", "digests", "categories"))),
        prompt=torch.cat([route.keys.prompt.cpu() + start for route, start in zip(routes, starts, strict=False)]),
        position=keys["position"],
        token=keys["token"],
        following=keys["next"],
        predicted=keys["predicted"],
        loss=torch.cat([loss for _, loss in parts]),
        chosen=torch.cat(chosen, 1),
        notes=tuple(note for captured, _ in parts for note in captured.notes),
    )
