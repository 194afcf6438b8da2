"""The balancing loss of trainers, in the convention of each."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Shaped
from scipy.stats import norm
from torch import Tensor

from analysis.certainty import hidden, per_token
from analysis.loads import layer_counts, over_layers
from analysis.measure import Chance, Values, measure
from analysis.nulls import DRAWS, NO_TOKEN, central_band, uniform_loads
from analysis.result import Reason
from analysis.statistic import State

Convention = Literal["switch", "megatron", "transformers", "sequence"]
DRAWN_NUMBERS = 4_000_000


@measure(
    title="Balance loss",
    question="What would a trainer's balancing loss say of each layer?",
    unit="loss without coefficient (1 at balance; k for transformers)",
    family="routing",
    source="Fedus et al. 2021, arXiv 2101.03961 (switch); Megatron-LM moe_utils; transformers load_balancing_loss_func"
    "; DeepSeek-AI 2024, arXiv 2412.19437, eq. 17-20 (sequence)",
    axes=("layer",),
)
def balance_loss(prompt_counts: State, router_sums: State, *, convention: Convention = "megatron") -> Values:
    """E sum_e f_e P_e, with P_e the mean probability of expert e over all tokens and f_e the convention's fraction.

    `switch`: f_e = share of tokens whose likeliest chosen expert is e. `megatron`: f_e = n_e / (k T), with n_e the
    selections among T tokens. `transformers`: f_e = n_e / T, hence k times Megatron's. `sequence`: as DeepSeek-V3 has
    it beside its bias, f_e = n_e / (k T) with n_e the tokens among whose k highest scores e is, the bias left out, f
    and P over the T tokens of one prompt; then the plain mean over prompts. All before capacity, without a coefficient;
    sigmoid scores are normalised to sum 1 before P.

    Formula:
        L = E sum_e f_e P_e;  f_e = n_e / (k T);  P_e = (1/T) sum_t p_te
        E experts, k chosen by each of T tokens; n_e selections of e; p_te router probability (sigmoid scores over their
        sum). switch: f_e = share of tokens whose likeliest chosen expert is e. transformers: f_e = n_e / T. sequence:
        mean over prompts of L within each, n_e counting the k highest p_te (ties for the last places share them).

    Returns:
        One number per layer: 1 (`transformers`: k) at balance, 0 to E/k (`switch` and `transformers`: to E). The fact
        `all layers pooled` puts the tokens of all layers together first, as transformers does; `all tokens as one
        sequence` is what `sequence` is without its cut. NaN where the router hides its scores.

    Raises:
        Nothing of its own.

    Source:
        Fedus et al. 2021, arXiv 2101.03961; the code of Megatron-LM and transformers; DeepSeek-AI 2024, arXiv
        2412.19437.

    Caveat:
        Pooled over layers, opposite imbalances of two layers cancel. Over all tokens asked about: a trainer's
        micro-batch or sequence has larger values, and the shorter the larger; `sequence` takes prompts for sequences. A
        selection bias is in f and not in P, but for `sequence`, where it is in neither.
    """
    if convention == "sequence":
        return _by_sequence(router_sums)
    fraction, mean = (
        _fractions(prompt_counts, router_sums, convention),
        per_token(router_sums, "probabilities", "scored"),
    )
    values = _loss(fraction, mean)
    facts = over_layers(values, prompt_counts.shape.layers, "highest")
    facts["all layers pooled"] = float(_loss(fraction.nanmean(0), mean.nanmean(0)))
    return Values(values, facts=facts, caveats=hidden(values))


@balance_loss.chance
def null(
    prompt_counts: State, router_sums: State, *, convention: Convention, generator: torch.Generator
) -> Chance | Reason:
    """The loss of these mean probabilities if selections were blind to them; of a sequence, of nameless experts.

    Returns:
        Mean and central 95 % band per layer.

    Source:
        Ours: exact draws of the selections, probabilities as seen; for `sequence` mean and variance in closed form.
    """
    shape, tokens = prompt_counts.shape, int(prompt_counts["tokens"].sum())
    if not tokens:
        return NO_TOKEN
    if convention == "sequence":
        return _nameless(router_sums)
    top_k = 1 if convention == "switch" else shape.top_k
    draws = min(DRAWS, max(100, DRAWN_NUMBERS // (len(shape.layers) * shape.experts * top_k)))
    loads = uniform_loads(torch.full((draws, len(shape.layers)), tokens), top_k, shape.experts, generator)
    share = loads / tokens / (top_k if convention == "megatron" else 1)
    # Experts are exchangeable under the null: in the order of their probabilities, their names cannot matter.
    drawn = _loss(share, per_token(router_sums, "probabilities", "scored").sort(-1).values)
    how = f"{draws:,} simulations of uniform routing of {tokens} independent tokens; probabilities as seen"
    return Chance(drawn.mean(0), *central_band(drawn), how)


def _by_sequence(router_sums: State) -> Values:
    names = ("prompt_top", "prompt_probabilities", "prompt_scored")
    (top, mean, tokens), k = (router_sums[name].double() for name in names), router_sums.shape.top_k
    of_each = _loss(top / (k * tokens[..., None]), mean / tokens[..., None])
    values, every = of_each.nanmean(0), tokens.sum(0)[:, None]
    facts = over_layers(values, router_sums.shape.layers, "highest")
    facts["sequences"] = int((tokens > 0).any(-1).sum())
    facts["all tokens as one sequence"] = float(_loss(top.sum(0) / (k * every), mean.sum(0) / every).nanmean())
    return Values(values, facts=facts, caveats=hidden(values))


def _nameless(router_sums: State) -> Chance:
    """Each token hands its scores to the experts in a random order of its own: f still follows p, and nothing else.

    With a_t the k highest of token t as 0 and 1, both centred, L - 1 is E / (k T^2) times the sum of a_t . p_s over all
    pairs of tokens. Those of a token with itself never change; the others have mean 0 and are uncorrelated but for
    a_t . p_s with a_s . p_t.
    """
    names = ("scored", "mass", "mass_squared", "squares")
    tokens, mass, mass_squared, squares = (router_sums[f"prompt_{name}"].double() for name in names)
    experts, k = router_sums.shape.experts, router_sums.shape.top_k
    own, scale = mass - tokens * k / experts, experts / (k * tokens**2)
    own_squared = mass_squared - 2 * k / experts * mass + tokens * (k / experts) ** 2
    apart = (tokens - 1) * k * (1 - k / experts) * (squares - tokens / experts)
    variance = scale**2 * (apart + own**2 - own_squared).clamp(min=0) / (experts - 1)
    mean, count = (1 + scale * own).nanmean(0), (tokens > 0).sum(0)
    half = float(norm.ppf(0.975)) * variance.nansum(0).sqrt() / count
    how = "each token's scores in random order, tokens independent: exact mean and variance, normal band"
    return Chance(mean, mean - half, mean + half, how)


def _fractions(prompt_counts: State, router_sums: State, convention: Convention) -> Float[Tensor, "layer expert"]:
    if convention == "switch":
        return per_token(router_sums, "first", "scored")
    share = layer_counts(prompt_counts, "selected").double() / prompt_counts["tokens"].sum()
    return share / prompt_counts.shape.top_k if convention == "megatron" else share


def _loss(fraction: Shaped[Tensor, "*draw expert"], mean: Float[Tensor, "*layer expert"]) -> Float[Tensor, "*case"]:
    return fraction.shape[-1] * (fraction * mean).sum(-1)
