"""What the measures of routing, router and coupling say of each plant."""

import math

import numpy as np

from tests.analysis.plant_cells import (
    ACROSS,
    ALL_ALIKE,
    GAUGE,
    OWN_LIKE_OWN,
    REFUSED,
    SAME,
    SAME_EXPERTS,
    TOLERANCE,
    Cell,
    alike,
    at,
    both,
    everywhere,
    fact,
)
from tests.analysis.plants import COMMON, DEAD, TWIN

UNEVEN = np.array([1, 1, 0, 0, 0, 0])
EVEN = ("identical", "rotated", "disjoint", "nested")
"""Six experts with a third of the tokens each."""
OF_SUBSET, OF_DUPLICATED = np.array([3, 1, 1, 1, 1, 1]) / 8, np.array([1, 2, 1, 2, 1, 1]) / 8
"""Shares of the selections, where four pairs of experts come in turn."""
ONE_SIGNATURE = ("identical", "duplicated", "rotated", "nested", "subset")
"""Prompts of twelve tokens are whole turns of three or four pairs: all have the same signature."""
OF_THE_DEAD = (slice(None), DEAD)


def _in_even(cell: Cell) -> dict[str, Cell]:
    return dict.fromkeys(EVEN, cell)


def _one_signature(renamed):
    # Nothing varies; experts under new names: 1 / (6 |s|^2); 12 tokens blindly: 1 / (1 + 4 / 24).
    return everywhere([1, 1, renamed, 6 / 7])


def _entropy(shares):
    return -sum(q * math.log(q) for q in shares)


def _probability(s):
    return (s.world.drawing.x @ s.world.drawing.rows.mT).softmax(-1).numpy()


def _displaced(s):
    p = _probability(s)
    return (p[..., :2] < np.sort(p, -1)[..., 4:5]).mean((-1, -2))


def _lse_squared(s):
    # Six equal logits: their logsumexp is one of them plus ln 6.
    return ((s.world.drawing.x[..., 0] + math.log(6)) ** 2).mean(-1).numpy()


def _rows_with_common(s):
    # Rows of length 1 with a vector of length c at right angles: (cos + c^2) / (1 + c^2).
    return (s.before() + COMMON**2) / (1 + COMMON**2)


ROUTING: dict[str, dict[str, Cell]] = {
    "balance_loss": {
        **GAUGE,
        # Even loads, whatever the probabilities are.
        **_in_even(everywhere(1)),
        "collapsed": everywhere(lambda s: 3 * _probability(s).mean(1)[:, :2].sum(-1)),
    },
    "dead_experts": {**GAUGE, "dead": everywhere(1), "collapsed": everywhere(4), "identical": everywhere(0)},
    "expert_coverage": {
        **GAUGE,
        "dead": everywhere(math.nan),
        "collapsed": everywhere(math.nan),
        # Six experts with a third of the tokens each: 6 (2/3)^N = 1/2.
        **_in_even(everywhere(math.log(12) / math.log(1.5))),
    },
    "expert_load": {
        **GAUGE,
        **_in_even(everywhere(1)),
        "duplicated": everywhere(6 * OF_DUPLICATED),
        "subset": everywhere(6 * OF_SUBSET),
        "collapsed": everywhere(3 * UNEVEN),
        "dead": at(OF_THE_DEAD, 0),
    },
    "load_entropy": {
        **GAUGE,
        **_in_even(everywhere(1)),
        "duplicated": everywhere(_entropy(OF_DUPLICATED) / math.log(6)),
        "subset": everywhere(_entropy(OF_SUBSET) / math.log(6)),
        "collapsed": everywhere(math.log(2) / math.log(6)),
    },
    "load_violation": {
        **GAUGE,
        **_in_even(everywhere(0)),
        "duplicated": everywhere(0.5),
        "subset": everywhere(1.25),
        "collapsed": everywhere(2),
        "dead": everywhere(1).asked(which="min"),
    },
    "probability_entropy": {**GAUGE, "identical": everywhere(math.log(6)), "collapsed": SAME, "dead": SAME},
    "router_z_loss": {"turned": SAME, "identical": everywhere(_lse_squared), "collapsed": SAME, "dead": SAME},
    "routing_information": {**GAUGE, "identical": everywhere(0), "collapsed": SAME, "dead": SAME},
    "routing_margin": {**GAUGE, "identical": everywhere(0), "collapsed": SAME},
    "signature_baselines": {
        **GAUGE,
        # Two of six experts, half each: 1 / (6 / 2); 12 tokens blindly: 1 / (1 + 4 / 24).
        "collapsed": everywhere([1, 1, 1 / 3, 6 / 7]),
        **dict.fromkeys(("identical", "rotated", "nested"), _one_signature(1)),
        "duplicated": _one_signature(8 / 9),
        "subset": _one_signature(16 / 21),
        "disjoint": at((slice(None), 1), 0),
    },
    "signature_classifier": {
        **GAUGE,
        # Nothing to go by: at best the commoner kind of the training prompts, which is rarer among those held out.
        "collapsed": Cell(lambda s: np.testing.assert_array_less(s.values, 0.5 + TOLERANCE)),
        "disjoint": everywhere(1),
    },
    "signature_effect": {
        **GAUGE,
        "collapsed": everywhere(1).asked(quantity="within"),
        "disjoint": everywhere(0).asked(quantity="across"),
        # All cosines are 1: their standard deviation is no unit to count in.
        **dict.fromkeys(ONE_SIGNATURE, both(everywhere(math.nan), fact("within", 1), fact("across", 1))),
    },
    "signature_embedding": {"common": SAME, "turned": SAME, "collapsed": REFUSED},
    "signature_outlier": {
        **GAUGE,
        **dict.fromkeys((*ONE_SIGNATURE, "collapsed"), everywhere(0)),
        # Prompts are in the order of their category: the first eight are of kind a.
        "disjoint": both(at((slice(0, 8), 1), 1), at((slice(8, 16), 0), 1), fact("nearest to their own category", 1)),
    },
    "signature_similarity": {
        **GAUGE,
        **dict.fromkeys((*ONE_SIGNATURE, "collapsed"), everywhere(1)),
        "disjoint": at((slice(0, 8), slice(8, 16)), 0),
    },
    "router_common_mode": {
        # Rows of length 1 that sum to 0, and a vector of length 2: 4 / (1 + 4).
        "common": everywhere(0.8),
        "turned": SAME,
        "identical": everywhere(1),
        # Rows of length 1 that sum to (0, 1, 1), (1.6, -1, 1, 0.8) and (2, 1, 2, 1).
        "duplicated": everywhere(2 / 36),
        "rotated": everywhere(5.2 / 36),
        "disjoint": everywhere(10 / 36),
        "dead": SAME,
    },
    "router_cosine": {
        "common": everywhere(_rows_with_common),
        "turned": SAME,
        "identical": everywhere(1),
        "duplicated": both(SAME_EXPERTS, at((slice(None), *TWIN), 1)),
        "rotated": at((slice(None), *TWIN), 0.6),
        "disjoint": at((..., ACROSS), 0),
        "dead": SAME,
    },
    "router_drift": {
        "common": everywhere(0),
        # The mean row is 0. Axes 0, 1, 2 become 1 (minus), 3, 0: every row is at right angles to what it was.
        "turned": everywhere(1),
        # Minus their mean, six equal rows have no direction.
        "identical": everywhere(math.nan),
        "dead": everywhere(0),
    },
    "router_mean_cosine": {
        # Three of fifteen pairs are opposite; with the common vector (-0.2 + 4) / 5.
        "common": everywhere(0.76),
        "turned": everywhere(-0.2),
        "identical": everywhere(1),
        # (|sum|^2 - 6) / 30.
        "duplicated": everywhere(-4 / 30),
        "rotated": everywhere(-0.8 / 30),
        "disjoint": everywhere(2 / 15),
        "dead": SAME,
    },
    "router_orthogonality": {
        # Of 36: 6 ordered pairs with cosine 0.6 and 24 with 0.8.
        "common": everywhere((6 * 0.36 + 24 * 0.64) / 36),
        "turned": everywhere(1 / 6),
        "identical": everywhere(5 / 6),
        # Pairs on one axis: four, and three beside three with cosine 0.6.
        "duplicated": everywhere(8 / 36),
        "rotated": everywhere(2 * (3 + 3 * 0.36) / 36),
        "disjoint": everywhere(4 / 36),
        "dead": SAME,
    },
    "router_spectrum": {
        "common": SAME,
        "turned": everywhere([math.sqrt(2)] * 3 + [0, 0]),
        "identical": everywhere([math.sqrt(6), 0, 0, 0, 0]).asked(form="raw"),
        "dead": SAME,
    },
    "selection_bias": {**GAUGE, "identical": everywhere(0), "collapsed": everywhere(_displaced)},
    "expert_router_coupling": {
        "turned": SAME,
        "identical": ALL_ALIKE,
        "duplicated": SAME_EXPERTS,
        "rotated": OWN_LIKE_OWN,
        "disjoint": at((..., ACROSS), 0),
        "dead": SAME,
    },
    "gradient_interference": {
        # Probabilities are kept in float32.
        "common": Cell(lambda s: alike(s.values, s.before(), 1e-6)),
        "turned": SAME,
        # Equal probabilities and equal loads pull nowhere.
        "identical": everywhere(0),
    },
    "rank_profile": {
        **GAUGE,
        "identical": Cell(lambda s: alike(s.values, s.values[:, :1])),
        "dead": SAME,
        "collapsed": SAME,
    },
    "router_centroid_cosine": {
        "turned": SAME,
        "common": SAME.asked(rows="centred"),
        "identical": Cell(lambda s: alike(s.values, s.values[:, :1])),
        "duplicated": SAME_EXPERTS,
        "rotated": OWN_LIKE_OWN,
        "disjoint": at((..., ACROSS), 0),
        # Signs in turn: every centroid is 0.
        "nested": everywhere(math.nan),
        "dead": at((..., DEAD), math.nan),
    },
    "router_gate_correlation": {
        "turned": SAME,
        # With everyone's gate the same, a mismatched expert does as well as the own one.
        "identical": everywhere(0).asked(control="mismatched"),
        "dead": SAME.asked(pairs="all"),
        "collapsed": SAME.asked(pairs="all"),
    },
    "router_gate_response": {
        "turned": SAME,
        "common": SAME.asked(form="centred"),
        "identical": ALL_ALIKE,
        "duplicated": SAME_EXPERTS,
        "rotated": OWN_LIKE_OWN,
        "disjoint": at((..., ACROSS), 0),
        "dead": SAME,
    },
}
