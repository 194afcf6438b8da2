"""The training loop: a stream of moments from settings and token ids, and a run on disk made of it."""

import json
import logging
import platform
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor

from analysis.lab.model import LabMoeForCausalLM, initialise, seed_routers
from analysis.lab.step import StepLosses, max_violation, training_step, update_routers
from backend.lab.batches import TokenisedCorpus, batches
from backend.lab.model_files import save_step, step_folder, vocabulary
from backend.lab.settings import RunSettings, Vocabulary, lab_config
from backend.lab.validation import validate, validation_tokens

log = logging.getLogger(__name__)

BETAS = (0.9, 0.95)
CLIP = 1.0
FIRST_BATCHES = 20
LOG_EVERY = 20


@dataclass(frozen=True)
class Moment:
    """The model after `step` optimiser steps, and what the last of them said (nothing at step 0)."""

    step: int
    model: LabMoeForCausalLM
    losses: StepLosses | None


def moments(settings: RunSettings, words: Vocabulary, stream: Iterable[Tensor]) -> Iterator[Moment]:
    """The run, a step at a time, from step 0; ends with its steps or with the stream.

    The model is one and the same in every moment: read it before asking for the next.
    """
    stream = iter(stream)
    first = next(stream)
    model = LabMoeForCausalLM(lab_config(settings, words))
    initialise(model, settings.seed)
    seed_routers(model, first[:, :-1], settings.seed)
    accelerator = Accelerator(cpu=True)
    model, optimiser = accelerator.prepare(model.train(), _optimiser(model, settings))
    yield Moment(0, model, None)
    for step, tokens in enumerate(islice(chain([first], stream), settings.steps)):
        for group in optimiser.param_groups:
            group["lr"] = settings.learning_rate(step)
        losses = training_step(model, tokens)
        accelerator.backward(losses.loss)
        accelerator.clip_grad_norm_(model.parameters(), CLIP)
        optimiser.step()
        optimiser.zero_grad()
        update_routers(model)
        yield Moment(step + 1, model, losses)


def train(settings: RunSettings, corpus_folder: Path, out: Path) -> None:
    """Train one run and write it to `out`: run.json, log.jsonl, first-batches.npy and the stored steps."""
    corpus = TokenisedCorpus(corpus_folder)
    held_out = validation_tokens(corpus)
    out.mkdir(parents=True, exist_ok=True)
    first = np.stack([batch.numpy() for batch in islice(batches(corpus, settings.seed), FIRST_BATCHES)])
    np.save(out / "first-batches.npy", first.astype(np.uint16))
    (out / "run.json").write_text(json.dumps(_provenance(settings), indent=2) + "\n", "utf-8")
    began = time.process_time()
    with (out / "log.jsonl").open("w", encoding="utf-8", buffering=1) as lines:
        for moment in moments(settings, vocabulary(corpus_folder), batches(corpus, settings.seed)):
            for line in _lines(settings, moment, held_out):
                lines.write(json.dumps(line) + "\n")
            if moment.step in settings.stored:
                save_step(moment.model, corpus_folder, step_folder(out, moment.step))
                log.info("%s: step %d of %d stored", out.name, moment.step, settings.steps)
        seconds = round(time.process_time() - began, 1)
        lines.write(json.dumps({"kind": "end", "step": settings.steps, "cpu_seconds": seconds}) + "\n")


def finished(settings: RunSettings, out: Path) -> bool:
    """Whether `out` holds this very run, to its end."""
    if not (out / "run.json").is_file() or not (out / "log.jsonl").is_file():
        return False
    stored = json.loads((out / "run.json").read_text("utf-8"))["settings"]
    last = (out / "log.jsonl").read_text("utf-8").splitlines()[-1:]
    return read_settings(stored) == settings and bool(last) and json.loads(last[0])["kind"] == "end"


def read_settings(stored: dict[str, Any]) -> RunSettings:
    """The settings that `run.json` holds."""
    return RunSettings(**{**stored, "stored": tuple(stored["stored"])})


def _optimiser(model: LabMoeForCausalLM, settings: RunSettings) -> torch.optim.Optimizer:
    # Norm gains are left alone: decay would pull them to zero, not to one.
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.peak_learning_rate, betas=BETAS, fused=True)


def _lines(settings: RunSettings, moment: Moment, held_out: dict[str, Tensor]) -> Iterator[dict[str, Any]]:
    step, losses = moment.step, moment.losses
    if losses is not None and (step % LOG_EVERY == 0 or step in settings.stored):
        yield {
            "kind": "train",
            "step": step,
            "learning_rate": settings.learning_rate(step - 1),
            "cross_entropy": losses.cross_entropy.item(),
            "auxiliary": losses.auxiliary.item(),
            "batch_max_violation": None if losses.load is None else max_violation(losses.load).tolist(),
        }
    if step in settings.stored or step % settings.evaluate_every == 0 or step == settings.steps:
        yield {"kind": "validation", "step": step, **validate(moment.model, held_out)}


def _provenance(settings: RunSettings) -> dict[str, Any]:
    return {
        "settings": asdict(settings),
        "versions": {name: version(name) for name in ("torch", "transformers", "accelerate")},
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
    }
