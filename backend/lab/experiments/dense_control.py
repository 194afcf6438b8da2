"""Whether what is routed to an expert varies in fewer directions than what a dense layer would see."""

from collections.abc import Iterator

from backend.lab.experiment import Experiment, Row, Setting, chance_of, mean_of, not_run, row

TRAINED, START, PROMPTS = "free/step-03000", "free/step-00000", "four-tasks"
BOUNDS = "mean over experts and layers; bounds are the means of the experts' own"


def run(setting: Setting) -> Iterator[Row]:
    """Spectra of routed inputs against as many blind tokens of the layer, trained against untrained, and of outputs."""
    checkpoint = setting.checkpoint or TRAINED
    explained = setting.ask("routed_spectrum", checkpoint, prompts=PROMPTS)
    share, blind = mean_of(explained), chance_of(explained, "high")
    note = f"{BOUNDS}; as many blind tokens of the layer, which a dense layer sees, explain up to {blind:.3f}"
    yield row("variance in the first axes, inputs", "more than dense", share, share.above(blind), note)
    ranks = setting.ask("routed_spectrum", checkpoint, prompts=PROMPTS, quantity="participation")
    ratio, blind = mean_of(ranks), chance_of(ranks, "low")
    note = f"{BOUNDS}; as many blind tokens have at least {blind:.2f}"
    yield row("participation ratio, inputs", "fewer than dense", ratio, ratio.below(blind), note)
    if setting.checkpoint:
        yield not_run("variance in the first axes, trained less untrained", None, "needs the checkpoint's own step 0")
    else:
        more = share - mean_of(setting.ask("routed_spectrum", START, prompts=PROMPTS))
        yield row("variance in the first axes, trained less untrained", None, more, more.above(0), BOUNDS)
    outputs = setting.ask("routed_spectrum", checkpoint, prompts=PROMPTS, of="outputs", quantity="participation")
    note = f"{BOUNDS}; of the same tokens for all experts, so nothing here decides"
    yield row("participation ratio, outputs", None, mean_of(outputs), None, note)
    why = "measures that read experts refuse a model without any: the control here is blind tokens of the same layer"
    yield not_run("inputs and outputs of a dense model of the same active width", "flatter spectrum", why)


EXPERIMENT = Experiment(
    title="Spectra of routed experts against a dense layer",
    source="Liu 2026, arXiv 2605.16349",
    run=run,
    takes_checkpoint=True,
)
