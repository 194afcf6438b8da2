"""The tokens of each expert of a layer as points that move over a plane while the model learns."""

from __future__ import annotations

from analysis.centroids import Centroid
from analysis.errors import BadKnob
from analysis.measure import Inputs, Values, measure
from analysis.projections.plane import Method, axis_labels, plane
from analysis.result import Axis
from analysis.tracks import tracks_of


@measure(
    title="Centroid map over training",
    question="Where do the tokens of a layer's experts go as the model learns?",
    unit="coordinates (units of the hidden state for PCA)",
    family="trajectories",
    source="Ours; centroids: Ahrac et al. 2026, arXiv 2605.12476; PCA: Pearson 1901",
    axes=("expert", "coordinate"),
    reads=("centroid_sums",),
    interval="see trustworthiness",
    null="coordinates have no chance value; see trustworthiness, and the path lengths beside their band",
    slow_if={"method": "umap"},
)
def centroid_map(
    steps: tuple[Inputs, ...],
    *,
    layer: int = 0,
    centroid: Centroid = "centred",
    method: Method = "pca",
    neighbours: int = 15,
    seed: int = 0,
) -> Values:
    """Two coordinates of every expert's centroid at every checkpoint, in one frame fitted on all checkpoints together.

    `layer` counts MoE layers from 0. A frame of each checkpoint's own would turn and hide what moves.

    Formula:
        c_se = mean of x over the tokens expert e served at step s - mean of x over all tokens at step s
        The two coordinates are the first principal components of all c_se of the layer, all steps together; x: router
        input. plain: nothing taken away; weighted: mean by combine weight. mds, umap: other planes from the same c_se.

    Returns:
        Expert (at each checkpoint) by coordinate, any number, in units of the hidden state for PCA; checkpoint by
        checkpoint. NaN for an expert without tokens.

    Raises:
        TooFew: With fewer than two checkpoints, or fewer than two different points.
        NotComparable: If the checkpoints differ in layers, experts or width.
        BadKnob: If there is no such layer, `neighbours` is below 2 or `seed` below 0.

    Source:
        Ours; centroids: Ahrac et al. 2026, arXiv 2605.12476.

    Caveat:
        A plane shows the largest movements only: read its share of the variance. Distances across the map are true for
        PCA alone, and shortened. Centroids of few tokens jump without moving.
    """
    tracks = tracks_of(steps, centroid)
    if not 0 <= layer < tracks.shape[1]:
        raise BadKnob(f"layer={layer}; the MoE layers are 0 to {tracks.shape[1] - 1}")
    flat, facts = plane(tracks[:, layer].flatten(0, 1), method, neighbours, seed)
    length = tracks[:, layer].diff(dim=0).norm(dim=-1).sum(0)
    when = tuple(side.label or str(n) for n, side in enumerate(steps))
    experts = range(tracks.shape[2])
    axes = (
        Axis("expert", tuple(f"{w} E{e}" for w in when for e in experts), tuple(w for w in when for _ in experts)),
        Axis("coordinate", axis_labels(method)),
    )
    caveats = ("NaN: an expert without tokens at that checkpoint.",) if bool(flat.isnan().any()) else ()
    return Values(flat, axes, caveats, facts | {"mean path length": float(length.nanmean())})
