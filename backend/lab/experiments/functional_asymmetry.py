"""Whether experts do different things to inputs that overlap, and what fully soft routing changes."""

from collections.abc import Iterator

from backend.lab.experiment import (
    UNTRAINED,
    Experiment,
    Found,
    Row,
    Setting,
    chance_of,
    mean_of,
    not_run,
    pairs_of,
    row,
)
from backend.lab.series import Series, last_step, paired

TOP_K, SOFT, PROMPTS = "free/step-03000", "soft/step-03000", "four-tasks"
NEAR_ZERO = 0.1
"""Ours: the published means end at 0.068."""
BOUNDS = "mean over pairs and layers; bounds are the means of the pairs' own"


def run(setting: Setting) -> Iterator[Row]:
    """Alignment of mean Jacobians and distances of routed subspaces, top-k beside fully soft."""
    checkpoint = setting.checkpoint or TOP_K
    alignment = setting.ask("jacobian_alignment", checkpoint, prompts=PROMPTS)
    alike = mean_of(alignment, pairs_of(alignment))
    note = f"{BOUNDS}; near zero is taken as within {NEAR_ZERO} of it"
    near = None if alike.below(0) is None else alike.low > -NEAR_ZERO and alike.high < NEAR_ZERO
    yield row("Jacobian alignment, top-k", "0.000 to 0.068", alike, near, note)
    distance = setting.ask("grassmann_distance", checkpoint, prompts=PROMPTS, form="normalised")
    apart = mean_of(distance, pairs_of(distance))
    yield row("Grassmann distance over its maximum, top-k", "under the maximum", apart, apart.below(1), BOUNDS)
    nearer = apart.below(chance_of(distance, "low", pairs_of(distance)))
    yield row("the same, against what unrelated subspaces have", None, apart, nearer, BOUNDS)
    score = setting.ask("grassmann_distance", checkpoint, prompts=PROMPTS, form="score")
    beyond = mean_of(score, pairs_of(score))
    note = f"{BOUNDS}; 0 is as far apart as two halves of one expert's tokens, 1 is unrelated"
    yield row("Grassmann score between floor and random, top-k", "substantial", beyond, beyond.above(0), note)
    yield from _against_soft(setting, alike, apart)


def _against_soft(setting: Setting, alike: Found, apart: Found) -> Iterator[Row]:
    """Both readings of "top-k against fully soft": trained so, and switched when it is asked."""
    readings = {
        "each trained so": ("needs the same model trained with fully soft routing", lambda: SOFT),
        "switched at evaluation": ("only a lab run can be switched here", lambda: setting.softened(TOP_K)),
    }
    for reading, (why, checkpoint) in readings.items():
        closer, farther = (
            f"Jacobian alignment, soft less top-k, {reading}",
            f"Grassmann distance, top-k less soft, {reading}",
        )
        if setting.checkpoint:
            yield not_run(closer, "positive", why)
            yield not_run(farther, "positive", why)
            continue
        soft = checkpoint()
        answer = setting.ask("jacobian_alignment", soft, prompts=PROMPTS)
        more = mean_of(answer, pairs_of(answer)) - alike
        yield row(closer, "positive", more, more.above(0), BOUNDS)
        answer = setting.ask("grassmann_distance", soft, prompts=PROMPTS, form="normalised")
        less = apart - mean_of(answer, pairs_of(answer))
        yield row(farther, "positive", less, less.above(0), BOUNDS)
    if setting.series:
        yield from _trained(setting, setting.series)
    else:
        yield not_run("the same, each trained so, over seeds", "positive", UNTRAINED)
    yield not_run(
        "the same, layers and domains apart", None, "a table has no place for it: ask the page of the measure"
    )


def _trained(setting: Setting, series: Series) -> Iterator[Row]:
    """Loss-free top-k beside fully soft, over seeds at the series' size."""
    folders = series.train({name: series.over_seeds(series.like(name)) for name in ("free", "soft")})
    note = f"{series.seeds} seeds of {series.base.size}, {series.base.steps} steps; t interval over seeds"
    means = {}
    for measure, knobs in (("jacobian_alignment", {}), ("grassmann_distance", {"form": "normalised"})):
        for name, runs in folders.items():
            answers = [setting.ask(measure, last_step(run), prompts=PROMPTS, **knobs) for run in runs]
            means[measure, name] = [mean_of(answer, pairs_of(answer)).value for answer in answers]
    more = paired(means["jacobian_alignment", "soft"], means["jacobian_alignment", "free"])
    yield row("Jacobian alignment, soft less top-k, over seeds", "positive", more, more.above(0), note)
    less = paired(means["grassmann_distance", "free"], means["grassmann_distance", "soft"])
    yield row("Grassmann distance, top-k less soft, over seeds", "positive", less, less.above(0), note)


EXPERIMENT = Experiment(
    title="Geometric asymmetry in MoE specialisation",
    source="Liu 2026, arXiv 2605.16349 (Mixtral-8x7B, Qwen1.5-MoE-A2.7B, a controlled three-layer model)",
    run=run,
    takes_checkpoint=True,
)
