"""How much of a token's expert its id decides, and how much is left to the context."""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from analysis.effect import shuffled
from analysis.measure import Chance, Values, measure
from analysis.result import Axis, Reason
from analysis.statistic import State
from analysis.vocabulary import Often, Vocabulary, draws_of, shuffled_tables, vocabulary

Correction = Literal["miller_madow", "none"]


@measure(
    title="Token or context",
    question="Is a token's expert decided by the token, or by what came before it?",
    unit="bits (0 to log2 E; the two add up to the entropy of the expert)",
    family="specialisation",
    source="Shannon 1948; bias correction: Miller 1955 and Madow; the split is ours",
    axes=("layer", "part"),
)
def token_context_split(
    token_routes: State, *, correction: Correction = "miller_madow", min_count: Often = 10
) -> Values:
    """Information of the token id about the first-ranked expert, I(e; id), and what it leaves open, H(e | id).

    A router is a function of the token and what came before it, so for infinitely many tokens the entropy left open is
    exactly what the context decides: I(e; id) + I(e; context | id) = H(e). `miller_madow` adds to every entropy of n
    tokens over K seen experts (K - 1) / (2 n ln 2); only ids that occur `min_count` times or more are counted.

    Formula:
        context = sum_i (n_i / n) H(N_i);  token id = H(sum_i N_i) - context
        H(N) = -sum_e q_e log2 q_e + (K - 1) / (2 m ln 2);  q_e = N_e / m, m = sum_e N_e, K experts with N_e > 0
        N_ie: tokens of id i whose first-ranked expert is e; n_i = sum_e N_ie, n = sum_i n_i. none: no term in K.

    Returns:
        Layer by part, bits: I between 0 and H(e), H(e | id) between 0 and H(e) <= log2 E, but for the correction, which
        is not clipped and can bring I below 0. NaN if no id occurs often enough.

    Raises:
        BadKnob: If `min_count` is below 1.
        TooFew: If the routes carry no ids of this kind.

    Source:
        Shannon 1948; Miller 1955.

    Caveat:
        Few tokens per id make a router look decided by the id; the correction takes out the larger part of it, so read
        I as an upper and H(e | id) as a lower figure, beside shuffled ids. Rare ids are left out.
    """
    words = vocabulary(token_routes, "input", min_count)
    values = _split(words.tables(), correction)
    whole = values.sum(-1)
    facts: dict[str, int | float | str] = {
        "share decided by the id, mean over layers": float((values[:, 0] / whole).nanmean()),
        "entropy of the expert (bits), mean over layers": float(whole.nanmean()),
        "ids": words.ids,
        "tokens of these ids": len(words.id),
        "share of all tokens": len(words.id) / max(1, len(token_routes["token"])),
    }
    caveats = (f"NaN: no id occurs {min_count} times in these prompts.",) if not words.ids else ()
    if words.ids and bool(values.isnan().any()):
        caveats = ("NaN: a layer that chose identity experts only.",)
    axes = (Axis("layer", token_routes.shape.layers), Axis("part", ("token id", "context")))
    return Values(values, axes, caveats, facts)


@token_context_split.chance
def null(token_routes: State, *, correction: Correction, min_count: int, generator: torch.Generator) -> Chance | Reason:
    """The same split when ids are dealt to the tokens at random: nothing is decided by the id.

    Returns:
        Mean and central 95 % band per layer and part; the mean of the first is what the correction leaves of the bias.
        Facts: the bits that the prompt's category tells beyond the id, over what shuffled categories tell, and their p:
        the part of the context that is the category, too low where ids and categories go together.

    Source:
        Fisher 1935; p = (1 + draws at least as large) / (1 + draws).
    """
    words = vocabulary(token_routes, "input", min_count)
    if not words.ids:
        return Reason(f"no id occurs {min_count} times")
    mean, low, high, draws = shuffled_tables(words, lambda tables: _split(tables, correction), generator)
    how = f"{draws} random deals of {words.ids} ids to {len(words.id):,} tokens"
    return Chance(mean, low, high, how, _category(words, token_routes.prompts.categories, correction, generator))


def _category(
    words: Vocabulary, categories: tuple[str, ...], correction: Correction, generator: torch.Generator
) -> dict[str, float]:
    names = sorted(set(categories))
    if len(names) < 2:
        return {}
    codes = torch.tensor([names.index(c) for c in categories])
    # Whole prompts change their label: tokens of one prompt are alike.
    labels = torch.cat([codes[None], shuffled(codes, draws_of(words), generator)])
    left = [_split(words.told_apart(row, len(names)).tables(), correction)[:, 1].nanmean() for row in labels]
    # What the id alone leaves open is the same in all draws.
    told = -torch.stack(left)
    return {
        "bits from the category beyond the id, over shuffled ones": float(told[0] - told[1:].mean()),
        "permutation p of the category": float((told >= told[0] - 1e-12).double().mean()),
    }


def _split(tables: Int[Tensor, "layer id expert"], correction: Correction) -> Float[Tensor, "layer part"]:
    own = tables.sum(-1)
    # An id whose tokens all chose identity experts has no expert to know.
    left = (own * _entropy(tables, correction).nan_to_num()).sum(-1) / own.sum(-1)
    return torch.stack([_entropy(tables.sum(1), correction) - left, left], -1)


def _entropy(counts: Int[Tensor, "... expert"], correction: Correction) -> Float[Tensor, "*case"]:
    total = counts.sum(-1).double()
    plain = torch.special.entr(counts / total[..., None]).sum(-1)
    if correction == "miller_madow":
        plain = plain + ((counts > 0).sum(-1) - 1) / (2 * total)
    return plain / math.log(2)
