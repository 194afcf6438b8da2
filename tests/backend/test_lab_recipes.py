"""Every size is written down whole: what trains it, for how long, and what is stored."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from backend.lab import cli
from backend.lab.recipes import RECIPES
from backend.lab.settings import SIZES, RunSettings, Vocabulary, lab_config, tokens_a_step

LARGE = ("100m", "1b")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[RunSettings]:
    """The settings that `lab train` would train, in place of training."""
    found: list[RunSettings] = []
    monkeypatch.setattr(cli, "train", lambda settings, corpus, out, keep_every: found.append(settings))
    return found


def train(*words: str) -> None:
    done = CliRunner().invoke(cli.app, ["train", "--router", "loss_free", *words])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("size", SIZES)
def test_a_size_alone_is_a_whole_run(size: str, asked: list[RunSettings]) -> None:
    train("--size", size)
    [run], recipe = asked, RECIPES[size]
    assert (run.steps, run.sequences, run.warm_up) == (recipe.steps, recipe.sequences, recipe.warm_up)
    rates = [run.learning_rate(step) for step in range(0, run.steps + 1, 100)]
    assert max(rates) <= run.peak_learning_rate and rates[-1] == pytest.approx(run.final_learning_rate)
    assert run.learning_rate(run.warm_up - 1) == run.peak_learning_rate and run.warm_up < run.steps / 10
    assert list(run.stored) == sorted(set(run.stored)) and run.stored[:2] == (0, 20) and run.stored[-1] == run.steps
    assert run.balancing == 0.001, "the shipped run's own"


def test_steps_and_batch_may_be_others(asked: list[RunSettings]) -> None:
    train("--size", "1b", "--steps", "1000", "--sequences", "8")
    assert asked[0].stored == (0, 20, 80, 320, 1000) and asked[0].sequences == 8


@pytest.mark.parametrize("size", LARGE)
def test_the_readme_says_what_a_larger_size_takes_and_that_nobody_ran_it(
    size: str, asked: list[RunSettings], root: Path
) -> None:
    train("--size", size)
    text, run = (root / "backend" / "README.md").read_text("utf-8"), asked[0]
    row = next(line for line in text.splitlines() if line.startswith(f"| `{size}`"))
    batch = tokens_a_step(run.sequences)
    low, high = (f"{rate:.0e}".replace("e-0", "e-") for rate in (run.final_learning_rate, run.peak_learning_rate))
    assert f"| {run.steps:,} of {batch:,} | {high} to {low}, {run.warm_up:,} | {len(run.stored)} |" in row
    billions = float(re.search(r"([\d.]+) billion \| \d+,", row).group(1))  # type: ignore[union-attr]
    assert run.steps * batch == pytest.approx(billions * 1e9, rel=0.01)
    assert "**nobody has run them**" in text


def test_options_of_the_router_are_given_by_name_and_kept(asked: list[RunSettings]) -> None:
    train("--option", "router_bias_rule=centred_sign", "--option", "norm_topk_prob=false")
    assert asked[0].options == {"router_bias_rule": "centred_sign", "norm_topk_prob": False}
    train("--option", "router_bias_update_speed=0.02")
    assert asked[1].balancing is None, "the option says it, not the shipped run's speed"
    config = lab_config(asked[1], Vocabulary(60, 0, 1, 1))
    assert config.router_bias_update_speed == 0.02


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["--option", "kmeans_ema=0.1"],
            "router 'loss_free' has no option 'kmeans_ema'; it has norm_topk_prob, router_bias",
        ),
        (["--option", "router_bias_rule=loud"], "it takes one of ['sign', 'centred_sign', 'proportional']"),
        (["--option", "router_bias_rule"], "--option 'router_bias_rule' is not NAME=VALUE."),
        (
            ["--option", "router_bias_update_speed=0.1", "--balancing", "0.1"],
            "it is what --option router_bias_update_speed says: give one of the two",
        ),
    ],
)
def test_an_option_that_cannot_be_is_refused_in_a_sentence(
    words: list[str], sentence: str, asked: list[RunSettings]
) -> None:
    refused = CliRunner().invoke(cli.app, ["train", "--router", "loss_free", *words])
    assert refused.exit_code == 2 and not asked
    assert sentence in " ".join(refused.output.replace("│", " ").split())
