"""The tokens of each layer's experts as points that move over a plane while the model learns."""

from __future__ import annotations

from analysis.centroids import Centroid
from analysis.knob import Seed
from analysis.measure import Inputs, Values, measure
from analysis.projections.plane import Method, Neighbours
from analysis.tracks import in_one_frame, tracks_of


@measure(
    title="Centroid map over training",
    question="Where do the tokens of a layer's experts go as the model learns?",
    unit="coordinates (units of the hidden state for PCA)",
    family="trajectories",
    source="Ours; centroids: Ahrac et al. 2026, arXiv 2605.12476; PCA: Pearson 1901",
    axes=("layer", "step", "expert", "coordinate"),
    reads=("centroid_sums",),
    interval="see trustworthiness",
    null="coordinates have no chance value; see trustworthiness, and the path lengths beside their band",
    slow_if={"method": "umap"},
)
def centroid_map(
    steps: tuple[Inputs, ...],
    *,
    centroid: Centroid = "centred",
    method: Method = "pca",
    neighbours: Neighbours = 15,
    seed: Seed = 0,
) -> Values:
    """Two coordinates of every expert's centroid at every checkpoint, in one frame a layer, fitted on all checkpoints.

    A frame of each checkpoint's own would turn and hide what moves.

    Formula:
        c_se = mean of x over the tokens expert e served at step s - mean of x over all tokens at step s
        The two coordinates are the first principal components of all c_se of the layer, all steps together; x: router
        input. plain: nothing taken away; weighted: mean by combine weight. mds, umap: other planes from the same c_se.

    Returns:
        Layer by step by expert by coordinate, any number, in units of the hidden state for PCA. NaN for an expert
        without tokens, and for a layer whose points are all the same.

    Raises:
        TooFew: With fewer than two checkpoints, or fewer than two different points in every layer.
        NotComparable: If the checkpoints differ in layers, experts or width.
        BadKnob: If `neighbours` is below 2 or `seed` not 0 to 2**32 - 1.

    Source:
        Ours; centroids: Ahrac et al. 2026, arXiv 2605.12476.

    Caveat:
        A plane shows the largest movements only: read its share of the variance. Distances across the map are true for
        PCA alone, and shortened. Every layer has a frame of its own. Centroids of few tokens jump without moving.
    """
    return in_one_frame(tracks_of(steps, centroid), steps, method, neighbours, seed)
