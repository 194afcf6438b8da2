"""Which experts each surface class of tokens uses: digits, punctuation, newlines, the first token of a prompt."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from analysis.measure import Chance, Values, measure
from analysis.result import Reason
from analysis.slots import CLASSES_OF, TOKEN_CLASSES
from analysis.statistic import State
from analysis.vocabulary import Which

UNKNOWN = "these routes carry no text, so no token has a class"
Counts = tuple[Float[Tensor, "layer expert class"], Float[Tensor, " class"]]


@measure(
    title="Token class specialisation",
    question="Which experts does each surface class of tokens use: digits, punctuation, newlines, first tokens?",
    unit="share of the class's selections (0 to 1; 1/E is even)",
    family="specialisation",
    source="Ours; as domain specialisation (Muennighoff et al. 2024, arXiv 2409.02060), by surface form, not topic",
    axes=("layer", "expert", "class"),
    needs_selection=True,
)
def token_class_specialisation(token_class_counts: State, *, id_of: Which = "input") -> Values:
    """An expert's share of all (token, slot) pairs of a surface class, layer by layer.

    `id_of`: the class of the token itself, of the one that follows it, or of the one the model predicts to follow. The
    first token of a prompt is in no other class; `special` are the tokenizer's own, `other` is text.

    Formula:
        s_ec = N_ec / sum_j N_jc
        N_ec: (token, slot) pairs of tokens of class c that selected expert e.

    Returns:
        Layer by expert by class, 0 to 1. NaN for a class without tokens: no next token is a first one. The facts hold
        the tokens of each class, and the expert that takes most of it.

    Raises:
        Nothing of its own.

    Source:
        Ours, after Muennighoff et al. 2024, arXiv 2409.02060.

    Caveat:
        An expert that is busy everywhere is high in every class: compare across classes, and with the band. The band
        deals classes over all tokens as if they were independent: prompts differ in topic and in surface (code has more
        punctuation), so an expert of a topic lies outside it too. Ask prompts of one category to hold the topic fixed.
        A first token has read nothing before it, and there are as many as prompts: few.
    """
    counts, tokens = _counts(token_class_counts, id_of)
    values, shape = counts / counts.sum(1, keepdim=True), token_class_counts.shape
    facts: dict[str, int | float | str] = {"even share": 1 / shape.experts}
    for place, name in enumerate(TOKEN_CLASSES):
        facts[name] = f"{int(tokens[place]):,} tokens"
        if not bool(values[..., place].isnan().all()):
            layer, expert = divmod(int(values[..., place].nan_to_num(-1.0).argmax()), shape.experts)
            share = float(values[layer, expert, place])
            facts[name] = f"{facts[name]}, most to E{expert} of layer {shape.layers[layer]}: {share:.2g}"
    caveats = ("NaN: no token of this class, or none that chose a routed expert.",) if values.isnan().any() else ()
    if not bool(tokens.any()):
        caveats = (f"NaN: {UNKNOWN}.",)
    return Values(values, caveats=caveats, facts=facts)


@token_class_specialisation.chance
def null(token_class_counts: State, *, id_of: Which, generator: torch.Generator) -> Chance | Reason:
    """Classes dealt to the tokens at random: each class is served as all tokens are.

    Returns:
        Mean, the expert's share of all these tokens' selections, and 95 % band per layer, expert and class.

    Source:
        The number of tokens of a class that selected an expert is hypergeometric; normal, as in Lehmann 1975.
    """
    counts, tokens = _counts(token_class_counts, id_of)
    every = tokens.sum()
    if every < 2:
        return Reason(UNKNOWN if not every else "one token: there are no classes to deal")
    chosen = counts.sum(-1, keepdim=True)
    rate, slots = chosen / every, chosen.sum(1, keepdim=True) / every
    spread = (rate * (1 - rate) * (every - tokens) / (every - 1) / tokens).sqrt() / slots
    mean = (rate / slots).expand_as(counts)
    half = 1.96 * spread
    how = f"classes dealt at random over {int(every):,} tokens, hypergeometric, normal"
    return Chance(mean, (mean - half).clamp(min=0), (mean + half).clamp(max=1), how)


def _counts(state: State, id_of: Which) -> Counts:
    """Selections by layer, expert and class, and the tokens of each class."""
    place = CLASSES_OF.index(id_of)
    return state["selected"][..., place, :].sum(0).double(), state["of_class"][:, place].sum(0).double()
