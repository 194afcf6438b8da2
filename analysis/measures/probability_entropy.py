"""How undecided the router is about a single token."""

from __future__ import annotations

import math

from analysis.certainty import hidden, per_token
from analysis.loads import over_layers
from analysis.measure import Values, measure
from analysis.statistic import State


@measure(
    title="Entropy of the probabilities",
    question="How undecided is the router about a single token?",
    unit="nats (0 to ln E; ln E is undecided)",
    family="routing",
    source="Shannon 1948, as training monitors print it (per-token routing entropy)",
    axes=("layer",),
    null="certainty has no chance level: it grows with the scale of the scores; ln E is a router that does not decide",
)
def probability_entropy(router_sums: State) -> Values:
    """Mean over tokens of H(p_t) = -sum_e p_te ln p_te, with p_t the router's probabilities over all E experts.

    Sigmoid scores are normalised to sum 1 first.

    Formula:
        H = (1/T) sum_t sum_e -p_te ln p_te
        p_te: router probability of expert e for token t, all E experts (sigmoid scores over their sum); T tokens.

    Returns:
        One number per layer, 0 (one expert has all of it) to ln E nats. NaN where the router hides its scores.

    Raises:
        Nothing of its own.

    Source:
        Shannon 1948.

    Caveat:
        A low entropy is a decided router, not an unbalanced one: all tokens may be decided for different experts. The
        load entropy tells which; their difference is the routing information.
    """
    values = per_token(router_sums, "entropy", "scored")
    shape = router_sums.shape
    facts = over_layers(values, shape.layers, "lowest") | {"ln E": math.log(shape.experts)}
    return Values(values, facts=facts, caveats=hidden(values))
