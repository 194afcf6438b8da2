"""Routing signatures: which experts a prompt went to, layer by layer, and how alike two prompts are in that."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from analysis.cosines import centred_rows, unit_rows
from analysis.result import Reason
from analysis.slots import Prompts
from analysis.statistic import State

Weighting = Literal["auto", "count", "weight"]
SOFT_COUNT = "NaN: every token uses every expert (k = E), so counts tell no two prompts apart; ask for weights."
NO_TOKENS = "NaN: a prompt without routed tokens has no signature."


def weighting_of(counts: State, weighting: Weighting) -> Literal["count", "weight"]:
    """What `auto` means here: combine weights for a fully soft router, counts otherwise.

    Returns:
        "count" or "weight".

    Source:
        Ours: a router without selections still has weights.
    """
    if weighting != "auto":
        return weighting
    return "weight" if counts.soft else "count"


def signatures(counts: State, weighting: Weighting) -> Float[Tensor, "prompt layer expert"]:
    """The share of each expert in a prompt's (token, slot) pairs, or in its combine weight.

    Returns:
        Shares, 0 to 1, summing to 1 over experts; NaN for a prompt without tokens, and for counts of a fully soft
        router.

    Source:
        Avinash 2026, arXiv 2603.11114 (counts); weights: ours.
    """
    kind = weighting_of(counts, weighting)
    raw = counts["weights" if kind == "weight" else "selected"].double()
    if counts.soft and kind == "count":
        return torch.full_like(raw, torch.nan)
    return raw / raw.sum(-1, keepdim=True)


def directions(shares: Float[Tensor, "prompt layer expert"], centred: bool) -> Float[Tensor, "layer prompt expert"]:
    """Per layer the direction of each prompt's signature: products of two are cosines.

    Args:
        shares: Signatures.
        centred: Take away the mean signature of all prompts first.

    Returns:
        Unit vectors; NaN where a prompt has no signature or equals the mean.

    Source:
        Avinash 2026, arXiv 2603.11114; centring is ours: it removes what all prompts share.
    """
    by_layer = shares.transpose(0, 1)
    if centred:
        known = ~by_layer.isnan().any(-1).any(0)
        left = torch.full_like(by_layer, torch.nan)
        left[:, known] = centred_rows(by_layer[:, known])
        by_layer = left
    return unit_rows(by_layer)


def layer_cosines(unit: Float[Tensor, "layer prompt expert"]) -> Float[Tensor, "layer prompt prompt"]:
    """Cosine of every two prompts, layer by layer.

    Returns:
        -1 to 1 (0 to 1 if not centred); NaN where one of the two has no direction.

    Source:
        Avinash 2026, arXiv 2603.11114.
    """
    return (unit @ unit.mT).clamp(-1, 1)


def mean_cosines(unit: Float[Tensor, "layer prompt expert"]) -> Float[Tensor, "prompt prompt"]:
    """Cosine of every two prompts, averaged over the layers where both have a direction.

    Returns:
        -1 to 1 (0 to 1 if not centred); NaN where no layer knows both.

    Source:
        Avinash 2026, arXiv 2603.11114. One product of long vectors: no layer by prompt by prompt tensor is ever held.
    """
    known = ~unit.isnan().any(-1)
    long = unit.masked_fill(~known[..., None], 0).transpose(0, 1).flatten(1)
    layers = known.to(unit.dtype).T
    return (long @ long.T / (layers @ layers.T)).clamp(-1, 1)


def distinct_pairs(prompts: Prompts) -> torch.Tensor:
    """Pairs of two different texts, each once.

    Returns:
        True above the diagonal, except for a prompt and its own copy.

    Source:
        Ours: a copy is no evidence that a category is alike.
    """
    number = {digest: i for i, digest in enumerate(dict.fromkeys(prompts.digests))}
    text = torch.tensor([number[digest] for digest in prompts.digests], dtype=torch.long)
    return (text[:, None] != text[None, :]).triu(1)


def said(counts: State, weighting: Weighting, shares: Float[Tensor, "prompt layer expert"]) -> tuple[str, ...]:
    """What must stand beside numbers made of signatures: why some are NaN, and that weights were used by themselves.

    Returns:
        Caveats, possibly none.

    Source:
        Ours.
    """
    kind = weighting_of(counts, weighting)
    if counts.soft and kind == "count":
        return (SOFT_COUNT,)
    notes = ("Signatures are mean combine weights: every token uses every expert.",) if counts.soft else ()
    return (*notes, NO_TOKENS) if bool(shares.isnan().any()) else notes


def no_uniform_routing(counts: State, weighting: Weighting) -> Reason | None:
    """Why blind routing gives no null here, if it does not.

    Returns:
        A reason for combine weights and for no tokens at all, else nothing.

    Source:
        Ours: blind selection fixes counts; what weights it would carry is not defined.
    """
    if weighting_of(counts, weighting) == "weight":
        return Reason("combine weights have no blind counterpart; ask for counts to see the floor of uniform routing")
    if counts.soft or not int(counts["tokens"].sum()):
        return Reason("no selection was made")
    return None
