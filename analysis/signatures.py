"""Routing signatures: which experts a prompt went to, layer by layer, and how alike two prompts are in that."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from analysis.cosines import centred_rows, unit_rows
from analysis.errors import TooFew
from analysis.result import Reason
from analysis.statistic import State

ROWS = 256
"""Rows of a block in which products of pairs are formed."""
Weighting = Literal["auto", "count", "weight"]
Form = Literal["plain", "length_matched", "noise_corrected"]
SOFT_COUNT = "NaN: every token uses every expert (k = E), so counts tell no two prompts apart; ask for weights."
NO_TOKENS = "NaN: a prompt without routed tokens has no signature."
NOT_CLIPPED = "Noise-corrected cosines can exceed 1: they are right on average and never clipped."
NOT_FOR_WEIGHTS = "Combine weights carry no counting noise to correct for: these are the plain cosines."
NO_CORRECTION = "NaN: with one token, or no expert chosen twice, the noise of a prompt's counts is not known."


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


def signatures(counts: State, weighting: Weighting, per_token: bool = False) -> Float[Tensor, "prompt layer expert"]:
    """The share of each expert in a prompt's (token, slot) pairs, or in its combine weight; or per token.

    Cosines are the same for both: of k selections a token, all of them counted, `per_token` is k times the share.

    Returns:
        Shares, 0 to 1, summing to 1 over experts (`per_token`: to k, or to the weights' sum); NaN for a prompt without
        tokens, and for counts of a fully soft router.

    Raises:
        TooFew: If weights are asked for and the counts come without, as those of an imported trace may.

    Source:
        Avinash 2026, arXiv 2603.11114 (counts); weights: ours.
    """
    kind = weighting_of(counts, weighting)
    raw = counts["weights" if kind == "weight" else "selected"].double()
    if kind == "weight" and bool(raw.isnan().any()):
        raise TooFew("these routes carry no combine weights; ask for counts (weighting=count)")
    if counts.soft and kind == "count":
        return torch.full_like(raw, torch.nan)
    return raw / (counts["tokens"].double()[:, None, None] if per_token else raw.sum(-1, keepdim=True))


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
    if bool(known.all()):
        # Scaled before: a pass over all pairs, which no cache holds, costs a tenth of the product.
        return _products(unit.transpose(0, 1).flatten(1) * len(unit) ** -0.5)
    long = unit.masked_fill(~known[..., None], 0).transpose(0, 1).flatten(1)
    layers = known.to(unit.dtype).T
    return (long @ long.T / (layers @ layers.T)).clamp(-1, 1)


def _products(long: Float[Tensor, "prompt entry"]) -> Float[Tensor, "prompt prompt"]:
    """Cosines of all pairs; only blocks on and above the diagonal are multiplied out, which is half the work."""
    found = long.new_empty(len(long), len(long))
    for start in range(0, len(long), ROWS):
        stop = min(start + ROWS, len(long))
        block = (long[start:stop] @ long[start:].T).clamp_(-1, 1)
        found[start:stop, start:] = block
        found[stop:, start:stop] = block[:, stop - start :].T
    return found


def squared_lengths(
    selected: Shaped[Tensor, "layer prompt expert"], tokens: Shaped[Tensor, " prompt"], form: Form
) -> Float[Tensor, "layer prompt"]:
    """The squared length of a prompt's selections per token, without what counting a finite prompt adds to it.

    With q_e the chance that a token selects e, `sum n_e^2 / T^2` is too large by the scatter of counts, while
    `u = sum n_e (n_e - 1) / (T (T - 1))` is right on average for `sum q_e^2`: each token selects e once or not at all.
    `noise_corrected` is u. `length_matched` is what m tokens of the prompt, drawn blindly, give on average, m the
    tokens of the shortest prompt: `u + (sum n_e / T - u) / m`, which for the shortest prompt itself is the plain one.

    Returns:
        Selections squared per token squared; NaN without tokens, and for `noise_corrected` with one token.

    Source:
        Ours: factorial moments of counts.
    """
    n, t = selected.double(), tokens.double()
    if form == "plain":
        return n.square().sum(-1) / t**2
    known = (n * (n - 1)).sum(-1) / (t * (t - 1))
    if form == "noise_corrected":
        return known
    fewest = matched_length(tokens)
    return known.nan_to_num() * (1 - 1 / fewest) + n.sum(-1) / t / fewest


def matched_length(tokens: Shaped[Tensor, " prompt"]) -> int:
    """The tokens of the shortest prompt that has any.

    Returns:
        1 or more; 1 if no prompt has any.

    Source:
        Ours: the longest length that all prompts have.
    """
    return int(tokens[tokens > 0].min()) if bool((tokens > 0).any()) else 1


def corrected_cosines(
    rates: Float[Tensor, "layer prompt expert"], squared: Float[Tensor, "layer prompt"], centred: bool
) -> Float[Tensor, "layer prompt prompt"]:
    """Cosines of every two prompts whose squared lengths are told apart from their counts.

    Centred, both the products and the squared lengths are taken about the mean prompt: the Gram matrix is centred with
    the corrected lengths on its diagonal.

    Args:
        rates: Selections per token.
        squared: Squared lengths, as `squared_lengths` gives them.
        centred: Take away the mean of all prompts first.

    Returns:
        Cosines, not clipped: they can leave -1 to 1 by noise. 1 on the diagonal; NaN where a length is not known or not
        positive.

    Source:
        Ours. The products of two different prompts need no correction: their counts are independent.
    """
    known = ~(rates.isnan().any(-1) | squared.isnan())
    gram = rates.nan_to_num() @ rates.nan_to_num().mT
    gram.diagonal(dim1=-2, dim2=-1).copy_(squared.nan_to_num())
    if centred:
        gram = torch.stack([_centred_gram(g, k) for g, k in zip(gram, known, strict=True)])
    length = gram.diagonal(dim1=-2, dim2=-1).clone()
    # What rounding leaves of a length of 0 is not a length.
    positive = known & (length > 1e-12 * squared.nan_to_num().abs())
    length = torch.where(positive, length, torch.nan).sqrt()
    cosines = gram / (length[..., :, None] * length[..., None, :])
    cosines.diagonal(dim1=-2, dim2=-1).copy_(torch.where(positive, 1.0, torch.nan))
    return cosines


def _centred_gram(gram: Float[Tensor, "prompt prompt"], known: Bool[Tensor, " prompt"]) -> Tensor:
    share = known.double() / known.sum()
    left = gram - (gram @ share)[:, None]
    return left - (share @ left)[None, :]


def prompt_cosines(
    counts: State, weighting: Weighting, form: Form, centred: bool
) -> Float[Tensor, "layer prompt prompt"]:
    """Cosine of every two prompts, layer by layer, in the form asked for.

    Returns:
        -1 to 1, and beyond by noise if corrected; NaN where one of the two has no direction.

    Source:
        Avinash 2026, arXiv 2603.11114 (plain); the other forms are ours.
    """
    if form == "plain" or weighting_of(counts, weighting) == "weight" or counts.soft:
        return layer_cosines(directions(signatures(counts, weighting), centred))
    selected, tokens = counts["selected"].transpose(0, 1), counts["tokens"]
    rates = selected.double() / tokens.double()[None, :, None]
    return corrected_cosines(rates, squared_lengths(selected, tokens, form), centred)


def form_said(counts: State, weighting: Weighting, form: Form) -> tuple[str, ...]:
    """What must stand beside cosines in another form than the published one.

    Returns:
        Caveats, possibly none.

    Source:
        Ours.
    """
    if form == "plain":
        return ()
    if weighting_of(counts, weighting) == "weight":
        return (NOT_FOR_WEIGHTS,)
    if form == "noise_corrected":
        return (NOT_CLIPPED,)
    fewest = matched_length(counts["tokens"])
    return (f"As if {fewest} tokens of each prompt had been drawn blindly, those of the shortest prompt.",)


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
