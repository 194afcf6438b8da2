"""A recorded training step against a plain one: the lab's s64 model on batches of its own size, files written."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from analysis.lab.model import LabMoeForCausalLM, initialise
from analysis.lab.step import training_step
from backend.lab.series import FULL
from backend.lab.settings import Vocabulary, lab_config
from backend.recorder import GeometryRecorder
from tests.benchmarks.case import Case, Race

TOKENS, SEQUENCES = 128, 16


def race(geometry: bool) -> Race:
    """Forward, backward and AdamW on both sides; ours with every step recorded."""
    settings = replace(FULL, size="s64", router="softmax_aux", balancing=0.03)
    words = Vocabulary(2048, None, None, None)
    generator = torch.Generator().manual_seed(0)
    batch = torch.randint(0, 2048, (SEQUENCES, TOKENS + 1), generator=generator)
    models, folder = [], Path(tempfile.mkdtemp(prefix="recorder-"))
    for _ in range(2):
        model = LabMoeForCausalLM(lab_config(settings, words)).train()
        initialise(model, 0)
        models.append((model, torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)))
    recorder = GeometryRecorder(models[0][0], every=1, folder=folder, geometry=geometry)

    def step(index: int) -> float:
        model, optimiser = models[index]
        losses = training_step(model, batch)
        losses.loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        return float(losses.cross_entropy)

    def ours() -> float:
        loss = step(0)
        recorder.step()
        return loss

    return Race(ours, lambda: step(1), same_loss)


def same_loss(mine: float, theirs: float) -> None:
    """Recording changes nothing: both models have taken the same steps."""
    assert mine == theirs


CASES = (
    Case("recorded step: routes, counts, MaxVio", "plain step", 1.5, lambda: race(False), 21, overhead=True),
    Case("recorded step with geometry", "plain step", 2.5, lambda: race(True), 21, overhead=True),
)
