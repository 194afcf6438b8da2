"""Whether the experts that a prompt uses tell what the prompt is about."""

from collections.abc import Iterator

from backend.lab.experiment import Experiment, Found, Row, Setting, chance_of, mean_of, not_run, row

TRAINED, START, PROMPTS = "aux/step-03000", "aux/step-00000", "four-tasks"
WIDE = "mean over layers; bounds are the means of the layers' own"


def run(setting: Setting) -> Iterator[Row]:
    """Similarity within and across categories, its effect by depth and over training, a classifier with controls."""
    checkpoint = setting.checkpoint or TRAINED
    within, across = (
        mean_of(setting.ask("signature_effect", checkpoint, prompts=PROMPTS, quantity=quantity))
        for quantity in ("within", "across")
    )
    apart = (within - across).above(0)
    yield row("similarity within categories", 0.8435, within, apart, WIDE)
    yield row("similarity across categories", 0.6225, across, apart, WIDE)
    effect = setting.ask("signature_effect", checkpoint, prompts=PROMPTS)
    size, p = mean_of(effect), float(effect.facts["permutation p"])
    note = f"of the cosines' mean over layers, as published; no interval: permutation p {p:.4f}"
    yield row("Cohen's d", 1.44, Found(float(effect.facts["Cohen's d"])), p < 0.05, note)
    yield row("Cohen's d, mean over layers", None, size, size.above(chance_of(effect, "high")), WIDE)
    last, first = (mean_of(effect, slice(at, at + 1 or None)) for at in (-1, 0))
    yield row("Cohen's d, last layer less first", "grows with depth", last - first, (last - first).above(0))
    if setting.checkpoint:
        yield not_run("Cohen's d, trained less untrained", None, "needs the checkpoint's own step 0")
    else:
        start = mean_of(setting.ask("signature_effect", START, prompts=PROMPTS))
        yield row("Cohen's d, trained less untrained", None, size - start, (size - start).above(0), WIDE)
    yield from _classifier(setting, checkpoint)


def _classifier(setting: Setting, checkpoint: str) -> Iterator[Row]:
    found = setting.ask("signature_classifier", checkpoint, prompts=PROMPTS)
    accuracy = float(found.values)
    spread = float(found.facts["sd over folds"])
    chance = chance_of(found, "high")
    note = f"no interval: sd over folds {spread:.3f}, chance up to {chance:.3f}"
    yield row("classifier's accuracy", 0.925, Found(accuracy), accuracy > chance, note)
    words = float(found.facts["from its token ids alone"])
    note = f"from token ids alone {words:.3f}; no interval, so only a value that is not above is decided"
    yield row(
        "accuracy beyond that from words alone",
        None,
        Found(accuracy - words),
        None if accuracy > words else False,
        note,
    )


EXPERIMENT = Experiment(
    title="Task-conditioned routing signatures",
    source="Avinash 2026, arXiv 2603.11114 (OLMoE-1B-7B-0125-Instruct, 80 prompts)",
    run=run,
    takes_checkpoint=True,
)
