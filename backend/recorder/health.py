"""The health of a run over its recorded steps, under our names and under those of the trainers people read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from analysis.lab.balancing import max_violation
from backend.recorder.record import Record

TRAINERS = {
    "OLMo-core: load imbalance": "largest load over the mean, worst layer: MaxVio + 1",
    "prime-rl: max_vio": "MaxVio, mean over layers",
    "NeMo Automodel: moe/cv_mean": "sample standard deviation of loads over their mean, mean over layers",
    "NeMo Automodel: moe/expert_utilization_min": "least load over its equal share",
    "NeMo Automodel: moe/expert_utilization_max": "largest load over its equal share",
    "TRL: expert_usage/normalized_entropy_mean": "entropy of loads over ln E, mean over layers",
    "TRL: expert_usage/max_share_max": "largest share of all selections, worst layer",
    "TRL: expert_usage/active_fraction_mean": "share of experts with any token, mean over layers",
}
"""What trainers log, and what it is in our words. TRL's are of an open pull request (6514)."""


def timeline(records: Sequence[Record]) -> list[dict[str, Any]]:
    """One point a recorded step: by layer and as the trainers name them.

    Loads are of all the step's tokens; `batch_max_violation` is the mean over its forward passes of each one's own,
    which is larger: fewer tokens are less even.
    """
    return [_point(record) for record in records]


def _point(record: Record) -> dict[str, Any]:
    load = record.sums["selected"]
    share = load.double() / load.sum(-1, keepdim=True).clamp(min=1)
    experts = load.shape[-1]
    violation, over_equal = max_violation(load), share * experts
    entropy = torch.special.entr(share).sum(-1) / math.log(experts)
    spread = over_equal.std(-1, correction=1)
    point: dict[str, Any] = {
        "step": record.step,
        "tokens": int(record.sums["tokens"].max()),
        "max_violation": violation.tolist(),
        "batch_max_violation": (record.sums["violation"] / record.sums["passes"].clamp(min=1)).tolist(),
        "load_entropy": entropy.tolist(),
        "dead_experts": (load == 0).sum(-1).tolist(),
        "load": over_equal.tolist(),
        "trainers": dict(zip(TRAINERS, _named(violation, spread, over_equal, entropy, share), strict=True)),
    }
    if "rows" in record.sums:
        names = ("row_cosine", "centred_row_cosine_rms", "common_mode_share")
        point |= dict(zip(names, record.sums["rows"].mT.tolist(), strict=True))
    if "centroids" in record.sums:
        point["centroid_cosine"] = _centroids(record.sums["centroids"], load)
    return point


def _named(violation: Tensor, spread: Tensor, over_equal: Tensor, entropy: Tensor, share: Tensor) -> list[float]:
    return [
        float(violation.max() + 1),
        float(violation.mean()),
        float(spread.mean()),
        float(over_equal.min()),
        float(over_equal.max()),
        float(entropy.mean()),
        float(share.max()),
        float((share > 0).double().mean()),
    ]


def _centroids(sums: Tensor, load: Tensor) -> list[float | None]:
    """Mean cosine of the mean inputs of every two experts that have any, by layer; None where fewer than two have."""
    found: list[float | None] = []
    for layer, counts in zip(sums.double(), load, strict=True):
        unit = torch.nn.functional.normalize(layer[counts > 0], dim=-1)
        pairs = len(unit) * (len(unit) - 1)
        found.append(float(((unit @ unit.mT).sum() - len(unit)) / pairs) if pairs else None)
    return found
