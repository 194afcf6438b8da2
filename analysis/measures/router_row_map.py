"""The router's rows of each layer as points that move over a plane while the model learns."""

from __future__ import annotations

from analysis.cosines import Form
from analysis.knob import Seed
from analysis.measure import Inputs, Values, measure
from analysis.projections.plane import Method, Neighbours
from analysis.tracks import in_one_frame, rows_of


@measure(
    title="Router rows over training",
    question="Where do the router's rows go as the model learns?",
    unit="coordinates (weight units for PCA)",
    family="trajectories",
    source="Ours; PCA: Pearson 1901",
    axes=("layer", "step", "expert", "coordinate"),
    reads=("router_weight",),
    null="coordinates have no chance value; see trustworthiness, and how far a router drifts beside its band",
    slow_if={"method": "umap"},
)
def router_row_map(
    steps: tuple[Inputs, ...],
    *,
    form: Form = "centred",
    method: Method = "pca",
    neighbours: Neighbours = 15,
    seed: Seed = 0,
) -> Values:
    """Two coordinates of every router row at every checkpoint, in one frame a layer, fitted on all checkpoints.

    `centred` takes each checkpoint's mean row away first: a softmax router ignores what all its rows share.

    Formula:
        u_se = r_se - mean_j r_sj;  r_se: router row of expert e at step s. raw: u_se = r_se
        The two coordinates are the first principal components of all u_se of the layer, all steps together. mds, umap:
        other planes from the same u_se.

    Returns:
        Layer by step by expert by coordinate, any number, in weight units for PCA. NaN for a layer whose rows are all
        the same.

    Raises:
        TooFew: With fewer than two checkpoints, or fewer than two different rows in every layer.
        NotComparable: If the checkpoints differ in layers, experts or width.
        BadKnob: If `neighbours` is below 2 or `seed` not 0 to 2**32 - 1.

    Source:
        Ours.

    Caveat:
        Rows mostly grow as a model learns, which looks like a spreading of all from the middle: read directions, not
        radii. A plane shows the largest movements only. Every layer has a frame of its own.
    """
    return in_one_frame(rows_of(steps, form), steps, method, neighbours, seed)
