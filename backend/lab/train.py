"""The training loop: a stream of moments from settings and token ids, and a run on disk made of it."""

import json
import logging
import platform
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from analysis.lab.balancing import max_violation
from analysis.lab.model import LabMoeForCausalLM, initialise, routers, seed_routers
from analysis.lab.step import StepLosses, update_routers
from backend.errors import Conflict
from backend.lab import ranks
from backend.lab.batches import TokenisedCorpus, batches
from backend.lab.model_files import save_step, step_folder, vocabulary
from backend.lab.settings import RunSettings, Vocabulary, lab_config
from backend.lab.unfinished import Unfinished
from backend.lab.validation import validate, validation_tokens

log = logging.getLogger(__name__)

BETAS = (0.9, 0.95)
CLIP = 1.0
SGD_SCALE = 50.0  # times AdamW's rate: a guess, since a plain gradient has no size of its own to step by
ROWS_BY_SGD = f"SGD with momentum {BETAS[0]:g}, {SGD_SCALE:g} times the rate, no weight decay"
"""All that `row_optimiser="sgd"` changes of the rows: what compares it with AdamW compares these three at once.

Decay is left out so that gradients alone move the rows; the rate cannot be the same, AdamW's being in another unit.
"""
FIRST_BATCHES = 20
FIRST = "first-batches.npy"
LOG_EVERY = 20
KEEP_EVERY = 200
UNFINISHED = "unfinished"


@dataclass(frozen=True)
class Moment:
    """The model after `step` optimiser steps, and what the last of them said (nothing at step 0).

    `weights` gives what a step stores and `evaluate` the losses and selections of held-out sequences; of several
    processes that train one run all must ask for them.
    """

    step: int
    model: LabMoeForCausalLM
    losses: StepLosses | None
    weights: Callable[[], dict[str, Tensor]]
    evaluate: Callable[[Tensor], ranks.Evaluation]


def moments(
    settings: RunSettings, words: Vocabulary, stream: Iterable[Tensor], unfinished: Unfinished | None = None
) -> Iterator[Moment]:
    """The run, a step at a time, from step 0 or from where it was kept; ends with its steps or with the stream.

    The model is one and the same in every moment: read it before asking for the next. On a GPU it computes in bf16;
    started by `accelerate launch`, every process takes its share of each batch.
    """
    stream = iter(stream)
    first = next(stream)
    model = LabMoeForCausalLM(lab_config(settings, words))
    initialise(model, settings.seed)
    seed_routers(model, first[:, :-1], settings.seed)
    accelerator = ranks.accelerator()
    ranks.join(model, accelerator)
    stepping, *optimisers = accelerator.prepare(ranks.Stepping(model.train()), *_optimisers(model, settings))
    of_all = {name: partial(getattr(ranks, name), stepping, accelerator) for name in ("weights", "evaluate")}
    at = partial(Moment, model=model, **of_all)
    start = unfinished.restore(accelerator) if unfinished else 0
    if not start:
        yield at(0, losses=None)
    for step, tokens in enumerate(islice(chain([first], stream), start, settings.steps), start):
        for group in (group for optimiser in optimisers for group in optimiser.param_groups):
            group["lr"] = group.get("scale", 1.0) * settings.learning_rate(step)
        losses = stepping(ranks.share(tokens, accelerator))
        accelerator.backward(losses.loss)
        accelerator.clip_grad_norm_(stepping.parameters(), CLIP)
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad()
        update_routers(model)
        yield at(step + 1, losses=ranks.of_all(losses, accelerator))
        if unfinished:
            unfinished.keep(accelerator, step + 1)


def train(settings: RunSettings, corpus_folder: Path, out: Path, keep_every: int = KEEP_EVERY) -> None:
    """Train one run and write it to `out`: run.json, log.jsonl, first-batches.npy and the stored steps.

    A run of the same settings that was cut short goes on from where it was last kept, with the numbers it would have
    had; one that is at its end is left as it is.

    Raises:
        Conflict: If `out` holds something else, or a run of other settings or another text.
    """
    corpus = TokenisedCorpus(corpus_folder)
    held_out = validation_tokens(corpus)
    unfinished = Unfinished(out / UNFINISHED, keep_every)
    accelerator = ranks.accelerator()
    _claim(settings, corpus, out)
    if finished(settings, out):
        return
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        _begin(settings, corpus, out, unfinished)
    accelerator.wait_for_everyone()
    began = time.process_time()
    with (out / "log.jsonl").open("a", encoding="utf-8", buffering=1) as log_file:
        stream = batches(corpus, settings.seed, settings.sequences)
        for moment in moments(settings, vocabulary(corpus_folder), stream, unfinished):
            lines = list(_lines(settings, moment, held_out))
            weights = moment.weights() if moment.step in settings.stored else None
            if not accelerator.is_main_process:
                continue
            log_file.writelines(json.dumps(line) + "\n" for line in lines)
            if weights is not None:
                save_step(moment.model, weights, corpus_folder, step_folder(out, moment.step))
                log.info("%s: step %d of %d stored", out.name, moment.step, settings.steps)
        if accelerator.is_main_process:
            seconds = round(time.process_time() - began, 1)
            log_file.write(json.dumps({"kind": "end", "step": settings.steps, "cpu_seconds": seconds}) + "\n")
            unfinished.forget()


def _claim(settings: RunSettings, corpus: TokenisedCorpus, out: Path) -> None:
    """A folder is of one run: refuse one that holds another. Every process asks, so that none waits for one that left.

    What was kept of a run that nobody wrote down is no run.
    """
    about = out / "run.json"
    if not about.is_file():
        if found := next(out.glob("step-*"), None):
            raise Conflict(f"{out} holds {found.name} of a run that no run.json tells of: name another folder.")
        return
    told = json.loads(about.read_text("utf-8")).get("settings")
    if told is None:
        raise Conflict(f"{about} is not a training run's: something else lives in {out}; name another folder.")
    ours, theirs = asdict(settings), asdict(read_settings(told))
    if differs := [f"{name} {theirs[name]!r}, not {ours[name]!r}" for name in ours if theirs[name] != ours[name]]:
        raise Conflict(f"{out} holds a run of other settings ({'; '.join(differs)}): name another folder.")
    kept = out / FIRST
    if kept.is_file() and not np.array_equal(np.load(kept), _first_batches(settings, corpus)):
        raise Conflict(f"{out} holds a run on another text than that of {corpus.folder}: name another folder.")


def _first_batches(settings: RunSettings, corpus: TokenisedCorpus) -> np.ndarray:
    first = islice(batches(corpus, settings.seed, settings.sequences), FIRST_BATCHES)
    return np.stack([batch.numpy() for batch in first]).astype(np.uint16)


def _begin(settings: RunSettings, corpus: TokenisedCorpus, out: Path, unfinished: Unfinished) -> None:
    """Lay the folder out for a new run; one that goes on loses the lines of steps that are run again."""
    out.mkdir(parents=True, exist_ok=True)
    log_file, about = out / "log.jsonl", out / "run.json"
    if unfinished.step and log_file.is_file() and about.is_file():
        lines = log_file.read_text("utf-8").splitlines(keepends=True)
        kept = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= unfinished.step]
        resumed = json.dumps({"kind": "resumed", "step": unfinished.step}) + "\n"
        log_file.write_text("".join([*kept, resumed]), "utf-8")
        log.info("%s: goes on from step %d", out.name, unfinished.step)
        return
    unfinished.forget()
    np.save(out / FIRST, _first_batches(settings, corpus))
    about.write_text(json.dumps(_provenance(settings), indent=2) + "\n", "utf-8")
    log_file.write_text("", "utf-8")


def finished(settings: RunSettings, out: Path) -> bool:
    """Whether `out` holds this very run, to its end."""
    if not (out / "run.json").is_file() or not (out / "log.jsonl").is_file():
        return False
    last = (out / "log.jsonl").read_text("utf-8").splitlines()[-1:]
    return _settings_in(out) == settings and bool(last) and json.loads(last[0])["kind"] == "end"


def read_settings(stored: dict[str, Any]) -> RunSettings:
    """The settings that `run.json` holds."""
    return RunSettings(**{**stored, "stored": tuple(stored["stored"])})


def _settings_in(out: Path) -> RunSettings:
    return read_settings(json.loads((out / "run.json").read_text("utf-8"))["settings"])


def _optimisers(model: LabMoeForCausalLM, settings: RunSettings) -> list[torch.optim.Optimizer]:
    rate = settings.peak_learning_rate
    rows = [p for router in routers(model) for p in router.parameters()] if settings.row_optimiser == "sgd" else []
    apart = {id(p) for p in rows}
    others = [p for p in model.parameters() if id(p) not in apart]
    # Norm gains are left alone: decay would pull them to zero, not to one.
    groups = [
        {"params": [p for p in others if p.dim() > 1], "weight_decay": settings.weight_decay, "scale": 1.0},
        {"params": [p for p in others if p.dim() <= 1], "weight_decay": 0.0, "scale": 1.0},
    ]
    found: list[torch.optim.Optimizer] = [torch.optim.AdamW(groups, lr=rate, betas=BETAS, fused=True)]
    if rows:
        found.append(torch.optim.SGD([{"params": rows, "scale": SGD_SCALE}], lr=rate, momentum=BETAS[0]))
    return found


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
        yield {"kind": "validation", "step": step, **validate(moment.evaluate, held_out)}


def _provenance(settings: RunSettings) -> dict[str, Any]:
    return {
        "settings": asdict(settings),
        "versions": {name: version(name) for name in ("torch", "transformers", "accelerate")},
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
    } | ({"rows": ROWS_BY_SGD} if settings.row_optimiser == "sgd" else {})
