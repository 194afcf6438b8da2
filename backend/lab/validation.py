"""Validation of a lab model: loss and perplexity by domain, MaxVio over the whole validation set."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from analysis.lab.balancing import max_violation
from backend.lab.batches import TokenisedCorpus
from backend.lab.ranks import Evaluation
from backend.lab.settings import DOMAINS

SEQUENCES = 100  # of each domain: 51,200 tokens in all
AT_ONCE = 20


def validation_tokens(corpus: TokenisedCorpus) -> dict[str, Tensor]:
    """Sequences of each domain's held-out documents, spread evenly over them: neighbours share a document."""
    return {domain: _spread(corpus.sequences("validation", domain)) for domain in DOMAINS}


def validate(evaluate: Callable[[Tensor], Evaluation], tokens: Mapping[str, Tensor]) -> dict[str, Any]:
    """What a line of the log says of the model as it stands."""
    loss: dict[str, float] = {}
    load: Tensor | None = None
    for domain, ids in tokens.items():
        parts = [evaluate(part) for part in ids.split(AT_ONCE)]
        loss[domain] = torch.cat([losses for losses, _ in parts]).mean().item()
        for _, selections in parts:
            if selections is not None:
                load = selections if load is None else load + selections
    loss["all"] = sum(loss.values()) / len(loss)
    return {
        "tokens": sum(ids[:, 1:].numel() for ids in tokens.values()),
        "loss": loss,
        "perplexity": {domain: math.exp(value) for domain, value in loss.items()},
        "max_violation": _violation(load),
    }


def _spread(ids: np.ndarray) -> Tensor:
    rows = np.linspace(0, len(ids) - 1, min(SEQUENCES, len(ids))).round().astype(int)
    return torch.from_numpy(ids[rows].astype(np.int64))


def _violation(load: Tensor | None) -> dict[str, Any]:
    if load is None:
        return {"reason": "nothing is selected: every token goes everywhere, or there are no experts"}
    layers = max_violation(load)
    return {"layers": layers.tolist(), "mean": layers.mean().item(), "worst": layers.max().item()}
