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
    "Megatron forks: max violation, global batch": "MaxVio of the step; mean over layers is ours, theirs is not known",
    "Megatron forks: max violation, micro batch": "the same of each forward pass, mean over the step's passes",
    "NeMo Automodel: moe/cv_mean": "sample standard deviation of loads over their mean, mean over layers",
    "NeMo Automodel: moe/cv_median": "the same, lower median of the layers",
    "NeMo Automodel: moe/cv_min": "the same, least layer",
    "NeMo Automodel: moe/cv_max": "the same, worst layer",
    "NeMo Automodel: moe/expert_utilization_median": "load over its equal share, lower median of all experts",
    "NeMo Automodel: moe/expert_utilization_min": "least load over its equal share",
    "NeMo Automodel: moe/expert_utilization_max": "largest load over its equal share",
    "TRL: expert_usage/normalized_entropy_mean": "entropy of loads over ln E, mean over layers",
    "TRL: expert_usage/normalized_entropy_min": "the same, worst layer",
    "TRL: expert_usage/max_share_mean": "largest share of all selections, mean over layers",
    "TRL: expert_usage/max_share_max": "largest share of all selections, worst layer",
    "TRL: expert_usage/active_fraction_mean": "share of experts with any token, mean over layers",
}
"""What trainers log, and what it is in our words. TRL's are of an open pull request (6514)."""

UNTOLD = {
    "OLMo-core: load balancing loss; Megatron-LM: load_balancing_loss; NeMo Automodel: moe/aux_loss_mean": "mean "
    "probabilities of the experts are not recorded; the measure balance_loss gives it of a stored step",
    "OLMo-core: router Z loss; Megatron-LM: z_loss": "logits are not recorded; the measure router_z_loss gives it of a "
    "stored step",
    "Fast-LLM: normalised average entropy and mutual information of routing": "probabilities are not recorded; the "
    "measures probability_entropy and routing_information give them of a stored step",
    "torchtitan": "logs nothing of its routers",
}
"""What they also log and a record of selections cannot say, and why."""


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
        "trainers": dict(zip(TRAINERS, _named(record, spread, over_equal, entropy, share), strict=True)),
    }
    if "rows" in record.sums:
        names = ("row_cosine", "centred_row_cosine_rms", "common_mode_share")
        point |= dict(zip(names, record.sums["rows"].mT.tolist(), strict=True))
    if "centroids" in record.sums:
        point["centroid_cosine"] = _centroids(record.sums["centroids"], load)
    return point


def _named(record: Record, spread: Tensor, over_equal: Tensor, entropy: Tensor, share: Tensor) -> list[float]:
    violation, largest = max_violation(record.sums["selected"]), share.amax(-1)
    of_pass = record.sums["violation"] / record.sums["passes"].clamp(min=1)
    found = [violation.max() + 1, violation.mean(), violation.mean(), of_pass.mean()]
    found += [spread.mean(), spread.median(), spread.min(), spread.max()]
    found += [over_equal.median(), over_equal.min(), over_equal.max()]
    found += [entropy.mean(), entropy.min(), largest.mean(), largest.max(), (share > 0).double().mean()]
    return [float(each) for each in found]


def _centroids(sums: Tensor, load: Tensor) -> list[float | None]:
    """Mean cosine of the mean inputs of every two experts that have any, by layer; None where fewer than two have."""
    found: list[float | None] = []
    for layer, counts in zip(sums.double(), load, strict=True):
        unit = torch.nn.functional.normalize(layer[counts > 0], dim=-1)
        pairs = len(unit) * (len(unit) - 1)
        found.append(float(((unit @ unit.mT).sum() - len(unit)) / pairs) if pairs else None)
    return found
