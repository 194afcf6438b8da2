"""Whether two checkpoints send the same token to the same experts."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from analysis.alignment import same_tokens
from analysis.loads import over_layers
from analysis.matching import ALONE, Matching, Partners, partners, renamed, told, why_alone
from analysis.measure import Chance, Inputs, Values, measure
from analysis.nulls import NO_TOKEN, above_the_largest, beyond
from analysis.ranks import by_rank
from analysis.result import Reason
from analysis.unrelated import beside_another_prompt

What = Literal["jaccard", "top-1", "weighted", "same", "same so far"]
DRAWS, _DRAWN_NUMBERS = 100, 200_000_000


@measure(
    title="Routing agreement",
    question="How many of a token's experts are the same in b as in a?",
    unit="agreement (0 to 1; 1 is the same experts)",
    family="compare",
    source="Jaccard 1912; pairing of experts and chance: ours",
    axes=("layer",),
    reads=("token_routes",),
    needs_selection=True,
)
def routing_agreement(a: Inputs, b: Inputs, *, what: What = "jaccard", matching: Matching = "co-selection") -> Values:
    """Mean over tokens of the agreement of the experts in a and in b, those of b under the numbers of their partners.

    `jaccard`: shared experts over all that either side chose. `top-1`: whether the first-ranked is the same.
    `weighted`: what the combine weights share, each side's over their sum. `same`: share of tokens all of whose
    experts are the same in this layer, so that 1 less it is the share whose experts changed; `same so far`: in this
    layer and every MoE layer before it. An expert without partner agrees with nobody.

    Formula:
        J = (1/T) sum_t |A_t and m(B_t)| / |A_t or m(B_t)|
        A_t, B_t: experts of token t on either side; m: number in a of the partner of an expert of b.
        top-1: 1 if the first-ranked are partners. weighted: (1/T) sum_t sum_e min(p_te, q_te), p_t and q_t the weights.
        same: (1/T) sum_t 1[A_t = m(B_t)]; so far, of layer l: (1/T) sum_t prod_{i <= l} 1[A_ti = m(B_ti)].

    Returns:
        One number per layer, 0 to 1. NaN where no expert of the layer has a partner, or nothing was routed.

    Raises:
        NotComparable: If layers or (`identity`) numbers of experts differ, or no tokens end together.

    Source:
        Jaccard 1912 for sets; the rest is ours.

    Caveat:
        Matched by co-selection, agreement is among what the pairs were chosen for: compare it with chance under the
        same pairs, which is the null. Tokens of one prompt are alike, so chance keeps them together and moves prompts;
        prompts of one topic are alike too, and count as chance less often than they should. Two good routers may agree
        on nothing, and one layer that differs changes the inputs of all that follow.
    """
    tokens, pairs = same_tokens(a, b), partners(a, b, matching)
    each = _agreement(a, b, pairs, what, torch.arange(tokens))
    values = _known(each.mean(0), pairs)
    facts = told(pairs, matching) | over_layers(values, a.shape.layers, "lowest") | _divergence(a, b, pairs)
    lost = values.isnan()
    caveats = why_alone(lost, "layers in which no expert of a has a partner in b") if len(each) else ()
    return Values(values, facts=facts, caveats=caveats or (("NaN: no token was routed.",) if bool(lost.any()) else ()))


@routing_agreement.chance
def null(a: Inputs, b: Inputs, *, what: What, matching: Matching, generator: torch.Generator) -> Chance | Reason:
    """The same pairs of experts, each prompt of a beside another prompt of b.

    Returns:
        Mean and 95 % band per layer. Facts: layers that agree more than the largest agreement of other prompts, and
        its p. A `Reason` where one prompt holds all tokens.

    Source:
        Ours: keeps loads, and prompts whole; normal band from the spread of the draws. Max-statistic over layers:
        Westfall & Young 1993.
    """
    tokens = same_tokens(a, b)
    if not tokens:
        return NO_TOKEN
    prompt, pairs = b.token_routes["prompt"], partners(a, b, matching)
    if not bool((prompt != prompt[0]).any()):
        return Reason("all tokens are of one prompt, and chance sets a prompt beside another")
    draws = min(DRAWS, max(20, _DRAWN_NUMBERS // (tokens * len(a.shape.layers) * a.shape.top_k)))
    orders = [beside_another_prompt(prompt, generator) for _ in range(draws)]
    drawn = torch.stack([_known(_agreement(a, b, pairs, what, order).mean(0), pairs) for order in orders])
    mean, half = drawn.mean(0), 1.96 * drawn.std(0)
    own = _known(_agreement(a, b, pairs, what, torch.arange(tokens)).mean(0), pairs)
    by_layer = above_the_largest(torch.cat([own[None], drawn]) - mean)
    above, p = beyond(by_layer)
    facts = {"layers beyond chance (max-statistic)": f"{above} of {len(own)}", "permutation p": p}
    how = f"{draws} random orders of the prompts of b, {tokens:,} tokens, experts paired as they are"
    return Chance(mean, mean - half, mean + half, how, facts, by_layer)


def _known(values: Float[Tensor, " layer"], pairs: Partners) -> Float[Tensor, " layer"]:
    return torch.where((pairs != ALONE).any(-1), values, torch.nan)


def _agreement(
    a: Inputs, b: Inputs, pairs: Partners, what: What, order: Int[Tensor, " token"]
) -> Float[Tensor, "token layer"]:
    """Of each token of a with the token of b that stands at its place in this order."""
    kind = "same" if what == "same so far" else what
    found = torch.stack([_in_layer(a, b, pairs[layer], layer, kind, order) for layer in range(len(pairs))], 1)
    return found.cumprod(1) if what == "same so far" else found


def _in_layer(
    a: Inputs, b: Inputs, partner: Int[Tensor, " expert"], layer: int, what: str, order: Int[Tensor, " token"]
) -> Float[Tensor, " token"]:
    chosen, given = (a.token_routes[name][:, layer] for name in ("indices", "weights"))
    others, theirs = (b.token_routes[name][order, layer] for name in ("indices", "weights"))
    other, nobody = renamed(partner, others.long(), b.shape.experts)
    own = chosen.long().clamp(max=nobody)
    if what == "top-1":
        first, second = by_rank(own, given.float())[:, 0], by_rank(other, theirs.float())[:, 0]
        return ((first == second) & (first != nobody)).double()
    numbers = (given.double(), theirs.double()) if what == "weighted" else (torch.ones(()).double(),) * 2
    tables = [
        torch.zeros(len(who), nobody + 1).double().scatter_add_(1, who, n.expand(who.shape))
        for who, n in zip((own, other), numbers, strict=True)
    ]
    if what == "weighted":
        tables = [table / table.sum(-1, keepdim=True) for table in tables]
    shared = torch.minimum(*tables)[:, :nobody].sum(-1)
    if what == "weighted":
        return shared
    width = own.shape[1] + other.shape[1]
    return (2 * shared == width).double() if what == "same" else shared / (width - shared)


def _divergence(a: Inputs, b: Inputs, pairs: Partners) -> dict[str, int | float | str]:
    """At which layer the median token takes other experts for the first time."""
    so_far = _agreement(a, b, pairs, "same so far", torch.arange(len(a.token_routes["position"]))).mean(0)
    if not len(a.token_routes["position"]):
        return {}
    first = (so_far < 0.5).nonzero()
    return {
        "first layer of divergence (median token)": a.shape.layers[int(first[0])] if len(first) else "none",
        "tokens the same in every layer": float(so_far[-1]),
    }
