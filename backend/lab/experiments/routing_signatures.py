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
    rests = "no interval, so only a value that is not above is decided"
    for control, name in (("its token ids alone", "words alone"), ("a random router of its token ids",) * 2):
        told, quantity = found.facts.get(f"from {control}"), f"accuracy beyond that from {name}"
        if told is None:
            yield not_run(quantity, None, "neither for a fully soft router nor without token ids")
        else:
            yield _beyond(accuracy, float(told), quantity, f"from {control} {float(told):.3f}; {rests}")
    name = "accuracy beyond that of the untrained router"
    if setting.checkpoint:
        yield not_run(name, None, "needs the checkpoint's own step 0")
    else:
        start = float(setting.ask("signature_classifier", START, prompts=PROMPTS).values)
        yield _beyond(accuracy, start, name, f"at step 0 {start:.3f}; {rests}")


def _beyond(accuracy: float, control: float, name: str, note: str) -> Row:
    return row(name, None, Found(accuracy - control), None if accuracy > control else False, note)


EXPERIMENT = Experiment(
    title="Task-conditioned routing signatures",
    source="Avinash 2026, arXiv 2603.11114 (OLMoE-1B-7B-0125-Instruct, 80 prompts)",
    run=run,
    takes_checkpoint=True,
)
