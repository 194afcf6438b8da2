"""Whether a token id always goes to the same expert."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from analysis.loads import over_layers
from analysis.measure import Chance, Values, measure
from analysis.result import Reason
from analysis.statistic import State
from analysis.vocabulary import Often, Vocabulary, Which, shuffled_tables, vocabulary


@measure(
    title="Vocabulary specialisation",
    question="Does the same token id always reach the same expert?",
    unit="share of an id's tokens at its commonest expert, mean over ids (1/E to 1)",
    family="specialisation",
    source="Muennighoff et al. 2024, arXiv 2409.02060 (first-ranked expert, unweighted mean over ids)",
    axes=("layer",),
)
def vocabulary_specialisation(token_routes: State, *, id_of: Which = "input", min_count: Often = 10) -> Values:
    """For each token id the share of its tokens that rank its commonest expert first; the plain mean over ids.

    `id_of`: the token itself, the one that follows it, or the one the model predicts to follow. `min_count` = 1 is the
    published figure's, in which an id that occurs once counts as fully specialised; the facts hold it too.

    Formula:
        V = (1/I) sum_i max_e N_ie / sum_e N_ie
        N_ie: tokens of id i whose first-ranked expert is e; I ids that occur `min_count` times or more.

    Returns:
        One number per layer, 1/E to 1. NaN if no id occurs often enough.

    Raises:
        BadKnob: If `min_count` is below 1.
        TooFew: If the routes carry no ids of this kind.

    Source:
        Muennighoff et al. 2024, arXiv 2409.02060.

    Caveat:
        Few tokens per id raise it by themselves: compare it with shuffled ids, never with 1/E, and between models only
        on the same tokens. A busy expert raises it for all ids.
    """
    words = vocabulary(token_routes, id_of, min_count)
    values = _mean_share(words.tables())
    every = vocabulary(token_routes, id_of, 1)
    facts = {
        **over_layers(values, token_routes.shape.layers, "highest"),
        "ids": words.ids,
        "tokens of these ids": len(words.id),
        "mean over layers without a minimum count": float(_mean_share(every.tables()).nanmean()),
        "ids without a minimum count": every.ids,
    }
    return Values(values, facts=facts, caveats=_said(values, words, min_count))


@vocabulary_specialisation.chance
def null(token_routes: State, *, id_of: Which, min_count: int, generator: torch.Generator) -> Chance | Reason:
    """The same mean when ids are dealt to the tokens at random.

    Returns:
        Mean and central 95 % band per layer.

    Source:
        Fisher 1935. It keeps how often each id occurs and how busy each expert is.
    """
    words = vocabulary(token_routes, id_of, min_count)
    if not words.ids:
        return Reason(f"no id occurs {min_count} times")
    mean, low, high, draws = shuffled_tables(words, _mean_share, generator)
    return Chance(mean, low, high, f"{draws} random deals of {words.ids} ids to {len(words.id):,} tokens")


def _mean_share(tables: Int[Tensor, "layer id expert"]) -> Float[Tensor, " layer"]:
    return (tables.amax(-1).double() / tables.sum(-1)).nanmean(-1)


def _said(values: Float[Tensor, " layer"], words: Vocabulary, min_count: int) -> tuple[str, ...]:
    if not words.ids:
        return (f"NaN: no id occurs {min_count} times in these prompts.",)
    return ("NaN: a layer that chose identity experts only.",) if bool(values.isnan().any()) else ()
