"""What the measures of experts, prompts and checkpoints say of each plant."""

import math

import numpy as np

from tests.analysis.plant_cells import (
    ACROSS,
    ALL_ALIKE,
    GAUGE,
    GROUP,
    MAP,
    NAN_AT_THE_DEAD,
    NUMBER,
    SAME,
    SAME_EXPERTS,
    SAME_EXPERTS_BY_ANGLE,
    TOLERANCE,
    Cell,
    alike,
    at,
    both,
    close,
    everywhere,
    fact,
)
from tests.analysis.plant_routing import OF_DUPLICATED, OF_SUBSET, ONE_SIGNATURE
from tests.analysis.plants import DEAD, TWIN

BITS = "information about the category (bits), mean over layers"
ANGLE = math.acos(0.6)
UNEVEN = np.array([1, 1, 0, 0, 0, 0])
OF_THE_DEAD = (slice(None), DEAD)
SHOWN_OF_THREE = fact("variance shown, layer 1", 2 / 3)
STEPS_ALIKE = Cell(lambda s: alike(s.values[:, 1], s.values[:, 0]))
ASKED_BY_NUMBER: Cell = NUMBER.asked(matching="identity")
BY_NUMBER = dict.fromkeys(("identical", "duplicated", "rotated", "disjoint", "nested", "subset"), ASKED_BY_NUMBER)
"""No expert takes the tokens that one took before, so none has a partner by co-selection: they are asked by number."""
UNPAIRED = everywhere(np.nan)
NO_PARTNER = {**BY_NUMBER, "dead": UNPAIRED, "collapsed": UNPAIRED}


def _in_pairs(*pairs):
    """1 for an expert and its one companion."""
    found = np.eye(6)
    for e, f in pairs:
        found[e, f] = found[f, e] = 1
    return found


NEIGHBOURS, OF_ROTATED = _in_pairs((0, 1), (2, 3), (4, 5)), _in_pairs((0, 2), (1, 5), (3, 4))
OPPOSITE = np.array([1, -1, 1, 1, 1, -1])


def _evenness(shares):
    return -(shares * np.log(shares)).sum(-1) / math.log(6)


def _two_places(s):
    # Experts 1 and 5 lie opposite to the others, on one line in all layers; a principal axis has no sign.
    close(abs(s.values), [1, 0])
    for layer in s.values[:, 0].reshape(3, 6):
        close(layer * layer[0], OPPOSITE)


def _on_two(s):
    """Share of the unplanted selections that are of experts 0 and 1."""
    return s.base.loads.numpy()[:, :2].sum(-1) / 6


EXPERTS: dict[str, dict[str, Cell]] = {
    "expert_contribution": {**GAUGE, "duplicated": SAME_EXPERTS, "rotated": SAME_EXPERTS, "dead": NAN_AT_THE_DEAD},
    "expert_saliency": {**GAUGE, "duplicated": SAME_EXPERTS, "rotated": SAME_EXPERTS, "dead": NAN_AT_THE_DEAD},
    "jacobian_alignment": {
        **GAUGE,
        "identical": everywhere(1),
        "duplicated": both(SAME_EXPERTS, at((slice(None), *TWIN), 1)),
        "rotated": at((slice(None), *TWIN), 0.6).asked(tokens="served"),
        "disjoint": at((..., ACROSS), 0),
        "collapsed": SAME,
        "dead": SAME,
    },
    "jacobian_linear_share": {
        "common": SAME,
        "identical": ALL_ALIKE,
        "duplicated": SAME_EXPERTS,
        "collapsed": SAME,
        "dead": SAME,
    },
    "jacobian_spectrum": {
        **GAUGE,
        "identical": ALL_ALIKE,
        "duplicated": SAME_EXPERTS,
        "rotated": SAME_EXPERTS.asked(tokens="served"),
        "dead": NAN_AT_THE_DEAD.asked(tokens="served"),
        "collapsed": SAME,
    },
    "output_similarity": {
        **GAUGE,
        # The angle of a cosine that rounding leaves 4e-16 below 1 is 3e-8.
        "identical": everywhere(1, 1e-8),
        "duplicated": both(SAME_EXPERTS_BY_ANGLE, at((slice(None), *TWIN), 1, 1e-8)),
        # Tokens of one kind are 0 to the experts of the other, whose answer of 0 has no direction.
        "disjoint": at((..., ACROSS), math.nan),
        "collapsed": SAME,
        "dead": SAME,
    },
    "redundancy_map": {
        **GAUGE,
        "identical": at((..., 1), 1),
        # The first of a layer's fifteen pairs: the same tokens, the same Jacobian.
        "duplicated": both(at(slice(0, 45, 15), 1), fact("merge candidates", 3)),
        "disjoint": Cell(lambda s: close(np.isclose(s.values[:, 1], 0, atol=TOLERANCE).sum(), 27)),
    },
    "weight_similarity": {
        "common": SAME,
        "turned": SAME,
        "identical": everywhere(1),
        "duplicated": both(SAME_EXPERTS, at((slice(None), *TWIN), 1)),
        "rotated": at((slice(None), *TWIN), 0.6).asked(matrix="gate"),
        "disjoint": at((..., ACROSS), 0),
        "dead": SAME,
    },
    "centred_kernel_alignment": {
        "common": SAME,
        "identical": everywhere(1),
        "duplicated": both(SAME_EXPERTS, at((slice(None), *TWIN), 1)),
        "collapsed": SAME,
        "dead": SAME,
    },
    "grassmann_distance": {
        **GAUGE,
        "duplicated": both(SAME_EXPERTS, at((slice(None), *TWIN), 0)),
        "rotated": at((slice(None), *TWIN), ANGLE),
        # Two right angles across groups, the same plane within.
        "disjoint": everywhere(math.sqrt(2) * math.pi / 2 * ACROSS),
        "nested": at((slice(None), slice(2, 6), slice(2, 6)), 0),
        "dead": NAN_AT_THE_DEAD,
    },
    "principal_angles": {
        **GAUGE,
        "duplicated": everywhere(0).asked(pair="nearest"),
        "disjoint": everywhere(0.6 * math.pi / 2),
        "nested": everywhere(0),
        # Four experts in a plane, two in that plane turned: they have one axis in common.
        "rotated": everywhere([0, 8 / 15 * ANGLE]),
    },
    "routed_spectrum": {
        **GAUGE,
        "duplicated": SAME_EXPERTS,
        "rotated": SAME_EXPERTS,
        "disjoint": everywhere(1),
        # Variances 32 + 8, and 16 + 4 + 1 + 1/4, of which two axes are asked for.
        "nested": everywhere([1, 1, 1, 1, 20 / 21.25, 20 / 21.25]),
        "dead": NAN_AT_THE_DEAD,
    },
    "subspace_overlap": {
        **GAUGE,
        "duplicated": both(SAME_EXPERTS, at((slice(None), *TWIN), 1)),
        "rotated": at((slice(None), *TWIN), (1 + 0.36) / 2),
        "disjoint": everywhere(1.0 * ~ACROSS),
        "nested": everywhere(1).asked(n=1),
        "dead": NAN_AT_THE_DEAD,
    },
    "coactivation": {
        **GAUGE,
        "duplicated": both(SAME_EXPERTS, at((slice(None), *TWIN), 1)),
        "disjoint": at((..., ACROSS), 0),
        "identical": everywhere(NEIGHBOURS),
        "nested": everywhere(NEIGHBOURS),
        "rotated": everywhere(OF_ROTATED),
        "subset": both(at((slice(None), 1, 0), 1), at((slice(None), 0, 1), 1 / 3)),
        "collapsed": at((slice(None), slice(0, 2)), UNEVEN),
        "dead": at((slice(None), DEAD), math.nan),
    },
    "cross_layer_transition": {
        **GAUGE,
        # Within a group a token keeps its two experts: 1 or 1/2 against a third of the tokens; across, none.
        "disjoint": at((..., ACROSS), -1 / 3),
        # All layers have the same pairs, with a third of the tokens each.
        "identical": everywhere(NEIGHBOURS - 1 / 3),
        "nested": everywhere(NEIGHBOURS - 1 / 3),
        "rotated": everywhere(OF_ROTATED - 1 / 3),
        "duplicated": SAME_EXPERTS,
        "collapsed": at((slice(None), slice(0, 2)), 0),
        "dead": at((slice(None), DEAD), math.nan),
    },
    "domain_specialisation": {
        **GAUGE,
        "collapsed": everywhere(UNEVEN[:, None] / 2),
        "disjoint": both(
            everywhere((GROUP[:, None] == [0, 1]) / 3),
            fact(BITS, 1),
        ),
        **dict.fromkeys(("identical", "rotated", "nested"), everywhere(1 / 6)),
        "duplicated": everywhere(OF_DUPLICATED[:, None]),
        "subset": everywhere(OF_SUBSET[:, None]),
        "dead": at(OF_THE_DEAD, 0),
    },
    "expert_contrast": {
        **GAUGE,
        "disjoint": everywhere((1 - 2 * GROUP) * 2 / 3),
        **dict.fromkeys((*ONE_SIGNATURE, "collapsed"), everywhere(0)),
        "dead": at(OF_THE_DEAD, 0),
    },
    "expert_embedding": {
        "common": SAME,
        "duplicated": both(SAME_EXPERTS, MAP),
        "dead": both(NAN_AT_THE_DEAD, MAP),
        "rotated": Cell(_two_places),
        # Every centroid is the mean of its layer (0 where signs are in turn), and has no direction from it.
        "nested": everywhere(math.nan),
        "collapsed": everywhere(math.nan),
    },
    "token_context_split": {**GAUGE, "collapsed": everywhere(0)},
    "vocabulary_specialisation": {**GAUGE, "collapsed": everywhere(1)},
    "token_class_specialisation": {**GAUGE, "collapsed": everywhere(UNEVEN[:, None] / 2)},
    "centroid_map": {
        # Two checkpoints with the same tokens: the second has the points of the first.
        "common": both(STEPS_ALIKE, MAP),
        "dead": both(
            Cell(lambda s: close(np.argwhere(np.isnan(s.values).any(-1)), [[layer, 1, DEAD] for layer in (0, 1, 2)])),
            MAP,
        ),
    },
    "router_row_map": {
        # Three axes with equally much, so any plane of them will do; five after the turn.
        "common": both(STEPS_ALIKE, SHOWN_OF_THREE),
        "dead": both(STEPS_ALIKE, SHOWN_OF_THREE),
        "turned": fact("variance shown, layer 1", 2 / 5),
        "duplicated": both(Cell(lambda s: alike(s.values[:, 1, TWIN[0]], s.values[:, 1, TWIN[1]])), MAP),
        "identical": both(Cell(lambda s: alike(s.values[:, 1], s.values[:, 1, :1].repeat(6, 1))), SHOWN_OF_THREE),
    },
    "living_experts": {
        "collapsed": at(1, UNEVEN),
        "dead": both(at((1, *OF_THE_DEAD), 0), fact("deaths", 3)),
    },
    "centroid_trajectory": {"common": everywhere(0), "dead": NAN_AT_THE_DEAD},
    "router_saturation": {
        "common": everywhere(1),
        "turned": everywhere(1),
        "collapsed": everywhere(lambda s: np.stack([_on_two(s), np.ones(3)])),
    },
    "load_difference": {
        "common": everywhere(0),
        "turned": everywhere(0),
        "collapsed": everywhere(lambda s: 3 * UNEVEN - s.base.loads.numpy()),
        "dead": at(OF_THE_DEAD, lambda s: -s.base.loads.numpy()[:, DEAD]),
    },
    "violation_difference": {
        "common": everywhere(0),
        "turned": everywhere(0),
        # All on two of six: 3 over an equal share; evenly: no excess.
        "collapsed": everywhere(lambda s: 3 - s.base.loads.numpy().max(-1)),
        "identical": everywhere(lambda s: 1 - s.base.loads.numpy().max(-1)),
    },
    "entropy_difference": {
        "common": everywhere(0),
        "turned": everywhere(0),
        "collapsed": everywhere(lambda s: math.log(2) / math.log(6) - _evenness(s.base.loads.numpy() / 6)),
        "identical": everywhere(lambda s: 1 - _evenness(s.base.loads.numpy() / 6)),
    },
    "effect_difference": {
        "common": everywhere(0),
        "turned": everywhere(0),
        # All prompts alike: no spread to count an effect in.
        "collapsed": everywhere(np.nan),
        "identical": everywhere(np.nan),
    },
    "expert_matching": {
        "common": SAME,
        # Whoever takes every token, or none, cannot be told from another by the tokens it takes.
        "collapsed": UNPAIRED,
        "dead": at((..., DEAD), np.nan),
        "turned": SAME,
    },
    "routing_agreement": {**NO_PARTNER, "common": everywhere(1), "turned": everywhere(1)},
    "routing_distance": {**NO_PARTNER, "common": everywhere(0), "turned": everywhere(0)},
    "prompt_difference": {**NO_PARTNER, "common": everywhere(0), "turned": everywhere(0)},
    "router_row_difference": {
        "common": everywhere(0),
        "turned": everywhere(1).asked(matching="identity"),
        "identical": everywhere(np.nan),
        "dead": everywhere(0),
    },
    "jacobian_drift": {
        **BY_NUMBER,
        "common": everywhere(0),
        "collapsed": everywhere(0).asked(matching="identity"),
        "dead": everywhere(0).asked(matching="identity"),
        "subset": everywhere(0).asked(matching="identity"),
    },
    "subspace_drift": {
        **BY_NUMBER,
        "common": everywhere(0),
        "dead": ASKED_BY_NUMBER,
        "collapsed": UNPAIRED,
    },
}
