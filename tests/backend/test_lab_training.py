"""The lab's loop on a corpus of random tokens: order, files, refusals."""

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from analysis.lab.model import LabMoeForCausalLM, register, routers
from analysis.lab.routers import DENSE, router_names
from backend.lab import cli
from backend.lab import train as train_module
from backend.lab.batches import CorpusMisshapen, CorpusMissing, TokenisedCorpus, batches, stored_batches
from backend.lab.grid import GridResult, chosen, table
from backend.lab.model_files import load_state, relative_distance, state, step_folder, vocabulary
from backend.lab.settings import DOMAINS, UnknownSize, Vocabulary, lab_config
from backend.lab.summary import summary
from backend.lab.train import finished, moments, train
from tests.backend.lab_corpus import TINY

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


def test_the_order_depends_on_the_seed_alone(lab_corpus: Path) -> None:
    def first(seed: int) -> torch.Tensor:
        return torch.stack(list(islice(batches(TokenisedCorpus(lab_corpus), seed), 5)))

    assert torch.equal(first(0), first(0))
    assert not torch.equal(first(0), first(1))


def test_a_batch_has_four_sequences_of_each_domain_and_a_pass_shows_each_once(lab_corpus: Path) -> None:
    tokens = TokenisedCorpus(lab_corpus)
    two_passes = torch.stack(list(islice(batches(tokens, 0), 5)))
    for place, domain in enumerate(DOMAINS):
        rows = two_passes[:, 4 * place : 4 * place + 4].reshape(20, 129)
        expected = sorted(tokens.sequences("train", domain).tolist())
        assert sorted(rows[:10].tolist()) == expected == sorted(rows[10:].tolist())
        assert rows[:10].tolist() != rows[10:].tolist()


@pytest.mark.parametrize("router", [*router_names(), DENSE])
def test_a_run_is_the_same_twice(router: str, lab_corpus: Path) -> None:
    settings = replace(TINY, router=router, balancing=None)

    def end() -> dict[str, torch.Tensor]:
        for moment in moments(settings, vocabulary(lab_corpus), batches(TokenisedCorpus(lab_corpus), 0)):
            last = moment
        return state(last.model)

    assert relative_distance(end(), end()) == 0.0


def test_a_run_leaves_steps_that_stand_alone_a_log_and_its_first_batches(lab_corpus: Path, tmp_path: Path) -> None:
    train(TINY, lab_corpus, tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "first-batches.npy", "log.jsonl", "run.json", "step-00000", "step-00002", "step-00003"
    ]  # fmt: skip
    assert finished(TINY, tmp_path / "run")
    assert not finished(replace(TINY, seed=1), tmp_path / "run")
    register()
    loaded = AutoModelForCausalLM.from_pretrained(step_folder(tmp_path / "run", 3))
    assert loaded.dtype == torch.float32
    for moment in moments(TINY, vocabulary(step_folder(tmp_path / "run", 0)), batches(TokenisedCorpus(lab_corpus), 0)):
        last = moment
    assert relative_distance(state(loaded), state(last.model)) < 5e-4
    assert relative_distance(load_state(step_folder(tmp_path / "run", 3)), state(loaded)) == 0.0
    kept = list(stored_batches(tmp_path / "run" / "first-batches.npy"))
    assert len(kept) == train_module.FIRST_BATCHES
    assert torch.equal(kept[4], next(islice(batches(TokenisedCorpus(lab_corpus), 0), 4, None)))
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "validation"] == [0, 2, 3]


def test_the_summary_has_a_row_for_each_finished_run(lab_corpus: Path, tmp_path: Path) -> None:
    train(TINY, lab_corpus, tmp_path / "kmeans")
    train(replace(TINY, router="soft", balancing=None), lab_corpus, tmp_path / "soft")
    (tmp_path / "dense").mkdir()
    rows = summary(tmp_path / name for name in ("kmeans", "dense", "soft")).splitlines()[2:]
    assert [row.split(" | ")[0] for row in rows] == ["| kmeans", "| soft"]
    assert rows[0].split(" | ")[4].count("/") == 2
    assert rows[1].split(" | ")[3:6] == ["none"] * 3


def test_a_run_cut_short_is_not_finished(lab_corpus: Path, tmp_path: Path) -> None:
    assert not finished(TINY, tmp_path)
    train(TINY, lab_corpus, tmp_path)
    lines = (tmp_path / "log.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "log.jsonl").write_text("".join(lines[:-1]))
    assert not finished(TINY, tmp_path)


def test_the_rate_warms_up_to_its_peak_and_falls_to_its_end() -> None:
    rates = [replace(TINY, steps=1000).learning_rate(step) for step in range(1001)]
    assert max(rates) == rates[99] == TINY.peak_learning_rate
    assert rates[:100] == sorted(rates[:100])
    assert rates[100:] == sorted(rates[100:], reverse=True)
    assert rates[1000] == pytest.approx(TINY.final_learning_rate)


def test_rows_by_sgd_differ_in_what_is_said_and_in_nothing_else(lab_corpus: Path) -> None:
    model = LabMoeForCausalLM(lab_config(replace(TINY, router="softmax_aux", balancing=None), vocabulary(lab_corpus)))
    rows = {id(part.weight) for part in routers(model)}
    [plain] = train_module._optimisers(model, TINY)
    of_others, of_rows = train_module._optimisers(model, replace(TINY, row_optimiser="sgd"))
    [group] = of_rows.param_groups
    assert type(of_rows) is torch.optim.SGD and {id(p) for p in group["params"]} == rows
    said = f"SGD with momentum {group['momentum']:g}, {group['scale']:g} times the rate, no weight decay"
    assert said == train_module.ROWS_BY_SGD and group["weight_decay"] == 0 and not group["nesterov"]
    for ours, theirs in zip(of_others.param_groups, plain.param_groups, strict=True):
        assert [id(p) for p in ours["params"]] == [id(p) for p in theirs["params"] if id(p) not in rows]
        assert ours | {"params": 0} == theirs | {"params": 0}


def test_a_missing_corpus_is_refused_with_the_command_that_builds_it(tmp_path: Path) -> None:
    with pytest.raises(CorpusMissing, match=r"validation-code\.npy is not there; `moe-geometry lab corpus`"):
        train(TINY, tmp_path, tmp_path / "run")


def test_sequences_of_another_length_are_refused_with_their_shape(tmp_path: Path) -> None:
    np.save(tmp_path / "train-code.npy", np.zeros((3, 65), np.uint16))
    with pytest.raises(CorpusMisshapen, match=r"\(3, 65\); sequences of 129 ids"):
        TokenisedCorpus(tmp_path).sequences("train", "code")


def test_an_unknown_size_is_refused_with_the_known_ones(lab_corpus: Path) -> None:
    with pytest.raises(UnknownSize, match="'s128' is not known; there are s32, s64"):
        lab_config(replace(TINY, size="s128"), vocabulary(lab_corpus))


def result(router: str, balancing: float, perplexity: float, violation: float) -> GridResult:
    return GridResult(router, balancing, "s64", 2, 400, perplexity, violation, 2 * violation, 60.0)


def test_the_grid_chooses_the_best_balance_among_equal_perplexities() -> None:
    rows = [
        result("kmeans", 0.001, 100.0, 0.9),
        result("kmeans", 0.005, 101.9, 0.3),
        result("kmeans", 0.02, 102.1, 0.1),
        result("loss_free", 0.001, 90.0, 0.2),
    ]
    assert chosen(rows) == {"kmeans": 0.005, "loss_free": 0.001}
    assert "| kmeans | 0.005 | 101.9 | 0.300 | 0.600 | 60 |" in table(rows).splitlines()


def test_the_command_trains_a_run(lab_corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    options = ["--router", "kmeans", "--size", "s32", "--steps", "20", "--corpus", str(lab_corpus), "--out", str(out)]
    done = CliRunner().invoke(cli.app, ["train", *options])
    assert done.exit_code == 0, done.output
    assert step_folder(out, 20).is_dir()


def test_shipping_a_run_that_nobody_defined_is_refused_with_the_known_ones() -> None:
    refused = CliRunner().invoke(cli.app, ["ship", "--only", "hash"])
    assert refused.exit_code == 2
    assert "hash: none of aux, free, kmeans, none, soft, dense" in " ".join(refused.output.replace("│", " ").split())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--router", "hash"], "'hash' is none of"),
        (["--router", "soft", "--balancing", "0.1"], "balances nothing"),
        (["--router", "kmeans", "--size", "s1"], "'s1' is none of s32, s64"),
    ],
)
def test_the_command_refuses_what_it_does_not_know(options: list[str], sentence: str) -> None:
    refused = CliRunner().invoke(cli.app, ["train", *options])
    assert refused.exit_code == 2
    assert sentence in " ".join(refused.output.replace("│", " ").split())


@pytest.mark.parametrize(("size", "parameters", "active"), [("100m", 99e6, 21e6), ("1b", 1.0e9, 0.17e9)])
def test_the_larger_sizes_are_as_large_as_the_readme_says(size: str, parameters: float, active: float) -> None:
    settings, words = replace(TINY, router="softmax_aux", size=size, balancing=None), Vocabulary(4096, 0, 1, 1)
    config = lab_config(settings, words)
    with torch.device("meta"):
        model = LabMoeForCausalLM(config)
    experts = sum(p.numel() for name, p in model.named_parameters() if ".experts." in name)
    every = sum(p.numel() for p in model.parameters())
    assert every == pytest.approx(parameters, rel=0.03)
    assert every - experts * (1 - config.num_experts_per_tok / config.num_experts) == pytest.approx(active, rel=0.05)


def test_a_larger_batch_has_more_sequences_of_each_domain(lab_corpus: Path) -> None:
    corpus = TokenisedCorpus(lab_corpus)
    small, large = list(islice(batches(corpus, 0), 2)), next(batches(corpus, 0, 8))
    for place in range(len(DOMAINS)):
        parts = [batch[4 * place : 4 * place + 4] for batch in small]
        assert torch.equal(large[8 * place : 8 * place + 8], torch.cat(parts))
