"""The balancing loss of trainers, in the convention of each."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from analysis.certainty import HIDDEN, per_token
from analysis.loads import layer_counts, over_layers
from analysis.measure import Chance, Values, measure
from analysis.nulls import DRAWS, NO_TOKEN, central_band, uniform_loads
from analysis.result import Reason
from analysis.statistic import State

Convention = Literal["switch", "megatron", "transformers"]
DRAWN_NUMBERS = 4_000_000


@measure(
    title="Balance loss",
    question="What would a trainer's balancing loss say of each layer?",
    unit="loss without coefficient (1 at balance; k for transformers)",
    family="routing",
    source="Fedus et al. 2021, arXiv 2101.03961 (switch); Megatron-LM moe_utils; transformers load_balancing_loss_func",
    axes=("layer",),
)
def balance_loss(prompt_counts: State, router_sums: State, *, convention: Convention = "megatron") -> Values:
    """E sum_e f_e P_e, with P_e the mean probability of expert e over all tokens and f_e the convention's fraction.

    `switch`: f_e = share of tokens whose likeliest chosen expert is e. `megatron`: f_e = n_e / (k T), with n_e the
    selections among T tokens. `transformers`: f_e = n_e / T, hence k times Megatron's. All before capacity, without a
    coefficient; sigmoid scores are normalised to sum 1 before P.

    Formula:
        L = E sum_e f_e P_e;  f_e = n_e / (k T);  P_e = (1/T) sum_t p_te
        E experts, k chosen by each of T tokens; n_e selections of e; p_te router probability (sigmoid scores over their
        sum). switch: f_e = share of tokens whose likeliest chosen expert is e. transformers: f_e = n_e / T.

    Returns:
        One number per layer: 1 (`transformers`: k) at balance, 0 to E/k (`switch` and `transformers`: to E). The fact
        `all layers pooled` puts the tokens of all layers together first, as transformers does. NaN where the router
        hides its scores.

    Raises:
        Nothing of its own.

    Source:
        Fedus et al. 2021, arXiv 2101.03961; the code of Megatron-LM and transformers.

    Caveat:
        Pooled over layers, opposite imbalances of two layers cancel. Over all tokens asked about: a trainer's
        micro-batch or sequence has larger values. A selection bias is in f and not in P.
    """
    fraction, mean = (
        _fractions(prompt_counts, router_sums, convention),
        per_token(router_sums, "probabilities", "scored"),
    )
    values = _loss(fraction, mean)
    facts = over_layers(values, prompt_counts.shape.layers, "highest")
    facts["all layers pooled"] = float(_loss(fraction.nanmean(0), mean.nanmean(0)))
    return Values(values, facts=facts, caveats=(HIDDEN,) if bool(values.isnan().any()) else ())


@balance_loss.chance
def null(
    prompt_counts: State, router_sums: State, *, convention: Convention, generator: torch.Generator
) -> Chance | Reason:
    """The loss of these mean probabilities if selections were blind to them.

    Returns:
        Mean and central 95 % band per layer.

    Source:
        Ours: exact draws of the selections, probabilities as seen.
    """
    shape, tokens = prompt_counts.shape, int(prompt_counts["tokens"].sum())
    if not tokens:
        return NO_TOKEN
    top_k = 1 if convention == "switch" else shape.top_k
    draws = min(DRAWS, max(100, DRAWN_NUMBERS // (len(shape.layers) * shape.experts * top_k)))
    loads = uniform_loads(torch.full((draws, len(shape.layers)), tokens), top_k, shape.experts, generator)
    share = loads / tokens / (top_k if convention == "megatron" else 1)
    # Experts are exchangeable under the null: in the order of their probabilities, their names cannot matter.
    drawn = _loss(share, per_token(router_sums, "probabilities", "scored").sort(-1).values)
    how = f"{draws:,} simulations of uniform routing of {tokens} independent tokens; probabilities as seen"
    return Chance(drawn.mean(0), *central_band(drawn), how)


def _fractions(prompt_counts: State, router_sums: State, convention: Convention) -> Float[Tensor, "layer expert"]:
    if convention == "switch":
        return per_token(router_sums, "first", "scored")
    share = layer_counts(prompt_counts, "selected").double() / prompt_counts["tokens"].sum()
    return share / prompt_counts.shape.top_k if convention == "megatron" else share


def _loss(fraction: Shaped[Tensor, "*draw expert"], mean: Float[Tensor, "*layer expert"]) -> Float[Tensor, "*case"]:
    return fraction.shape[-1] * (fraction * mean).sum(-1)
