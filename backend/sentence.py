"""One text through one model, as a reader wants to see it: tokens, who served each in every layer, what comes next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from analysis.slots import GENERATED
from backend.adapters.anatomy import Anatomy
from backend.capture import Captured, CaptureOptions, capture
from backend.prompts import Prompt

FOLLOWING = 5
"""Likeliest next tokens that are told of each token."""
DIGITS = 6
NOT_WHOLE = "\ufffd"


@dataclass(frozen=True)
class Sentence:
    """Routing of one text: lists by layer, then token, then slot (best first as the model gave them).

    `indices` is None where a slot was not served by a routed expert; `entropy` of the router's probabilities in nats
    and `margins` in its own score units, None where the router hides them. `following` has for each token its likeliest
    next ones with their probability; empty for a model that predicts none. `tokens` have their piece of text, the
    characters it stands for in what was typed (None if nothing there is), and their role, prompt or generated.
    """

    tokens: list[dict[str, Any]]
    layers: tuple[str, ...]
    experts: int
    top_k: int
    indices: list[list[list[int | None]]]
    weights: list[list[list[float | None]]]
    entropy: list[list[float | None]]
    margins: list[list[float | None]]
    following: list[list[dict[str, Any]]]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values, not copied: they are thousands of numbers, and somebody is typing."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


def read(model: Any, anatomy: Anatomy, tokenizer: Any, text: str, options: CaptureOptions) -> Sentence:
    """Run the text, and what the model writes behind it if `options` says so; one pass gives the routes of both.

    Raises:
        TooFew: If the text has no token.
        GeometryError, AdapterLies: As `capture`.
    """
    with _following(model) as seen:
        found = list(capture(model, anatomy, tokenizer, [Prompt("typed", text, "none")], options, _NEEDS))
    [captured] = found
    assert captured.route is not None
    route, pieces = captured.route, Pieces(tokenizer)
    served = route.served & (route.indices < route.shape.experts)
    return Sentence(
        tokens=_tokens(captured, pieces),
        layers=route.shape.layers,
        experts=route.shape.experts,
        top_k=route.shape.top_k,
        indices=_known(route.indices, served),
        weights=_known(route.weights, served),
        entropy=[_known(torch.special.entr(layer.probabilities.double()).sum(-1)) for layer in captured.layers],
        margins=_known(route.margins),
        following=[
            [{"piece": pieces.of(i), "probability": round(p, DIGITS)} for i, p in zip(ids, shares, strict=True)]
            for ids, shares in seen
        ],
        notes=captured.notes,
    )


_NEEDS = frozenset({"routes", "layers"})


@contextmanager
def _following(model: Any) -> Iterator[list[tuple[list[int], list[float]]]]:
    """The likeliest next tokens, by token, of the last pass that ran inside; the model's output is left as it is."""
    seen: list[tuple[list[int], list[float]]] = []

    def keep(module: Any, args: Any, output: Any) -> None:
        logits = getattr(output, "logits", None)
        if logits is None:
            return
        best = logits[0].float().topk(min(FOLLOWING, logits.shape[-1]))
        shares = (best.values - logits[0].float().logsumexp(-1, keepdim=True)).exp()
        seen[:] = zip(best.indices.tolist(), shares.tolist(), strict=True)

    handle = model.register_forward_hook(keep)
    try:
        yield seen
    finally:
        handle.remove()


@dataclass(frozen=True)
class Pieces:
    """Ids as text; part of a character as the tokenizer writes it. Each is decoded once."""

    tokenizer: Any
    known: dict[int, str] = field(default_factory=dict)

    def of(self, token: int) -> str:
        """The piece of one token."""
        if token not in self.known:
            self.known[token] = self._decoded(token)
        return self.known[token]

    def _decoded(self, token: int) -> str:
        piece = self.tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return str(self.tokenizer.convert_ids_to_tokens(token)) if NOT_WHOLE in piece or not piece else piece


def _tokens(captured: Captured, pieces: Pieces) -> list[dict[str, Any]]:
    assert captured.route is not None
    keys = captured.route.keys
    rows = zip(keys.token.tolist(), keys.role.tolist(), keys.span.tolist(), strict=True)
    return [
        {
            "piece": pieces.of(token),
            "span": span if span[0] >= 0 else None,
            "role": "generated" if role == GENERATED else "prompt",
        }
        for token, role, span in rows
    ]


def _known(values: Tensor, where: Tensor | None = None) -> Any:
    """Nested lists, None for NaN and where `where` does not hold."""
    there = ~values.isnan() if where is None else where & ~values.isnan()
    return _paired(values.tolist(), there.tolist())


def _paired(value: Any, there: Any) -> Any:
    if isinstance(value, list):
        return [_paired(v, t) for v, t in zip(value, there, strict=True)]
    if not there:
        return None
    return round(value, DIGITS) if isinstance(value, float) else value
