"""An edited model beside the untouched one, and beside the same edit of random experts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from analysis.paired import loss_change, selections_changed
from backend.edits.trial import Trial
from backend.sentence import Pieces

EVERYTHING = "all"
SHOWN = 60
"""Tokens that are told of: those whose loss changed most."""
DIGITS = 6


@dataclass(frozen=True)
class TokenChanged:
    """One place where the edited model would write another token; pieces are text as the tokenizer gives it."""

    prompt: str
    category: str
    position: int
    piece: str
    following: str | None
    before: str
    after: str
    loss_change: float | None


def perplexities(plain: Trial, edited: Trial, randoms: Sequence[Trial]) -> list[dict[str, Any]]:
    """One row for all prompts, then one a category: perplexity before and after, the change with interval, and chance.

    `random` are the changes under the same edit of random experts, in nats a token, as `change` is.
    """
    blocks, (before, tokens) = plain.prompts.blocks, plain.by_prompt()
    after, *chance = (run.by_prompt()[0] for run in (edited, *randoms))
    rows = []
    for name in (EVERYTHING, *sorted(set(plain.prompts.categories))):
        own = [n for n, c in enumerate(plain.prompts.categories) if name in (EVERYTHING, c) and tokens[n]]
        if not own:
            continue
        of = (before[own], after[own], tokens[own])
        change = loss_change(*of, tuple(blocks[n] for n in own))
        drawn = [float((r[own] - before[own]).sum() / tokens[own].sum()) for r in chance]
        rows.append(
            {
                "category": name,
                "prompts": len(own),
                "tokens": int(tokens[own].sum()),
                "before": _perplexity(before[own], tokens[own]),
                "after": _perplexity(after[own], tokens[own]),
                "change": asdict(change),
                "random": drawn,
            }
        )
    return rows


def routing(plain: Trial, edited: Trial, randoms: Sequence[Trial]) -> list[dict[str, Any]]:
    """The share of selections that changed, by layer."""
    shift = [selections_changed(plain.chosen, run.chosen, plain.shape.experts).tolist() for run in (edited, *randoms)]
    own, *chance = shift
    return [
        {"layer": label, "changed": _known(own[n]), "random": [_known(row[n]) for row in chance]}
        for n, label in enumerate(plain.shape.layers)
    ]


def tokens_changed(plain: Trial, edited: Trial, tokenizer: Any) -> dict[str, Any]:
    """How many tokens are followed by another likeliest token, and those of them whose loss changed most."""
    differ = (plain.predicted != edited.predicted).nonzero().squeeze(-1)
    moved = (edited.loss - plain.loss)[differ]
    order = moved.abs().nan_to_num(-1).argsort(descending=True, stable=True)[:SHOWN]
    shown = [_token(int(at), plain, edited, tokenizer) for at in differ[order]]
    return {"count": len(differ), "of": len(plain.loss), "shown": [asdict(each) for each in shown]}


def _token(at: int, plain: Trial, edited: Trial, tokenizer: Any) -> TokenChanged:
    def piece(token: Tensor) -> str | None:
        return None if int(token) < 0 else Pieces(tokenizer).of(int(token))

    prompt = int(plain.prompt[at])
    return TokenChanged(
        prompt=plain.prompts.ids[prompt],
        category=plain.prompts.categories[prompt],
        position=int(plain.position[at]),
        piece=piece(plain.token[at]) or "",
        following=piece(plain.following[at]),
        before=piece(plain.predicted[at]) or "",
        after=piece(edited.predicted[at]) or "",
        loss_change=_known(float(edited.loss[at] - plain.loss[at])),
    )


def _perplexity(loss: Tensor, tokens: Tensor) -> float | None:
    """None where it is past what a float holds: JSON has no infinity."""
    mean = float(loss.sum() / tokens.sum())
    return math.exp(mean) if mean < 700 else None


def _known(value: float) -> float | None:
    return None if math.isnan(value) else round(value, DIGITS)
