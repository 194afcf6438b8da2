"""Whether experts do different things to inputs that overlap, and what fully soft routing changes."""

from collections.abc import Iterator

from backend.lab.experiment import Experiment, Found, Row, Setting, chance_of, mean_of, not_run, pairs_of, row

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
    if setting.checkpoint:
        why = "needs the same model trained with fully soft routing"
        yield not_run("Jacobian alignment, soft less top-k, each trained so", "positive", why)
        yield not_run("Grassmann distance, top-k less soft, each trained so", "positive", why)
    else:
        soft = setting.ask("jacobian_alignment", SOFT, prompts=PROMPTS)
        more = mean_of(soft, pairs_of(soft)) - alike
        yield row("Jacobian alignment, soft less top-k, each trained so", "positive", more, more.above(0), BOUNDS)
        soft = setting.ask("grassmann_distance", SOFT, prompts=PROMPTS, form="normalised")
        farther = apart - mean_of(soft, pairs_of(soft))
        yield row("Grassmann distance, top-k less soft, each trained so", "positive", farther, farther.above(0), BOUNDS)
    yield not_run(
        "the same, routing switched at evaluation", "positive", "a checkpoint's routing cannot be switched here yet"
    )
    yield not_run("the same, five seeds, layers and domains apart", None, "one seed of each is trained")


EXPERIMENT = Experiment(
    title="Geometric asymmetry in MoE specialisation",
    source="Liu 2026, arXiv 2605.16349 (Mixtral-8x7B, Qwen1.5-MoE-A2.7B, a controlled three-layer model)",
    run=run,
    takes_checkpoint=True,
)
