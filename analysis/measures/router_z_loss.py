"""How large the router's logits have grown."""

from __future__ import annotations

from analysis.certainty import hidden, per_token
from analysis.loads import over_layers
from analysis.measure import Values, measure
from analysis.statistic import State


@measure(
    title="Router z-loss",
    question="How large have the router's logits grown?",
    unit="squared logit units (0 or more)",
    family="routing",
    source="Zoph et al. 2022, arXiv 2202.08906 (ST-MoE)",
    axes=("layer",),
    null="no chance level is defined: it is a size, not a preference; zero logits give (ln E)^2",
)
def router_z_loss(router_sums: State) -> Values:
    """Mean over tokens of (logsumexp_e s_te)^2, unweighted: no coefficient, padding left out.

    Formula:
        Z = (1/T) sum_t (ln sum_e exp s_te)^2
        s_te: router logit of expert e for token t; T tokens.

    Returns:
        One number per layer, 0 or more. NaN where the router hides its logits.

    Raises:
        Nothing of its own.

    Source:
        Zoph et al. 2022, arXiv 2202.08906.

    Caveat:
        Logits that shift together change it and nothing a softmax router does. Trainers print it times a coefficient
        (often 0.001), or summed over layers.
    """
    values = per_token(router_sums, "logsumexp_squared", "logits_seen")
    mean = per_token(router_sums, "logsumexp", "logits_seen")
    facts = over_layers(values, router_sums.shape.layers, "highest")
    facts |= {"mean logsumexp over layers": float(mean.nanmean())}
    return Values(values, facts=facts, caveats=hidden(values))
