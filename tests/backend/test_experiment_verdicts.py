"""Planted answers get the verdict that they bear out, each experiment by its own rule."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from analysis.result import Axis
from backend.lab.train import ROWS_BY_SGD
from tests.backend.experiment import planted, result, rows_of, wide

SHOWS, DOES_NOT, CANNOT, MEASURED = "shows", "does not show", "cannot be tested at this size", "measured"


def kmeans(series=None, **violation: tuple[float, float]) -> dict[str, dict]:
    """Loads of three rules, of all tokens (blind routing up to 0.02) and of sequences (up to 0.2)."""

    def ask(measure, checkpoint, prompts, over):
        value, width = violation[checkpoint.split("/")[0]]
        return wide([value, value], width, null=(0.01, 0.0, 0.02 if over == "all" else 0.2))

    return rows_of("kmeans-router", ask, series=series)


def test_over_seeds_the_order_must_hold_in_every_pair(tmp_path: Path) -> None:
    def told(name: str, seed: int) -> dict[str, float]:
        rule = {"free": 0.08, "aux": 0.5}.get(name, 0.03)
        return {"violation": rule + 0.001 * seed, "perplexity": (22.0 if name == "kmeans" else 20.0) + 0.1 * seed}

    loads = {"kmeans": (0.03, 0.01), "free": (0.08, 0.01), "aux": (0.5, 0.1)}
    found = kmeans(planted(tmp_path, told_of=told), **loads)
    assert found["MaxVio, K-Means, over seeds"]["verdict"] == SHOWS
    assert "blind routing of 51,200 tokens stays under 0.019" in found["MaxVio, K-Means, over seeds"]["note"]
    cost = found["perplexity, K-Means over loss-free bias, less 1, over seeds"]
    assert cost["ours"] == pytest.approx(0.1, abs=0.01) and cost["verdict"] == SHOWS
    assert found["perplexity, K-Means over auxiliary loss, less 1, over seeds"]["note"].endswith("above 0")
    assert found["validation perplexity, auxiliary loss, over seeds"]["ours"] == pytest.approx(20.1)
    assert found["MaxVio, K-Means, rate 0.01, bias step 0.005"]["verdict"] == MEASURED


def test_a_planted_order_shows_and_an_overlap_does_not() -> None:
    found = kmeans(kmeans=(0.03, 0.01), free=(0.08, 0.01), aux=(0.5, 0.1))
    rules = ("K-Means", "loss-free bias", "auxiliary loss")
    assert [found[f"MaxVio, {rule}"]["verdict"] for rule in rules] == [SHOWS, SHOWS, SHOWS]
    for words in ("MaxVio of a sequence", "batch MaxVio"):  # blind routing would exceed the two smaller numbers
        assert [found[f"{words}, {rule}"]["verdict"] for rule in rules] == [CANNOT, CANNOT, SHOWS]
    assert found["MaxVio of a sequence, auxiliary loss less K-Means"]["verdict"] == CANNOT
    assert found["MaxVio, loss-free bias less K-Means"]["ours"] == pytest.approx(0.05)
    cost = found["perplexity, K-Means over loss-free, less 1"]
    assert cost["ours"] == pytest.approx(0.1) and cost["verdict"] == CANNOT
    found = kmeans(kmeans=(0.03, 0.05), free=(0.08, 0.01), aux=(0.5, 0.1))
    assert found["MaxVio, K-Means"]["verdict"] == DOES_NOT
    assert found["MaxVio, auxiliary loss"]["verdict"] == SHOWS


def test_batches_stand_beside_a_floor_and_parameters_are_counted() -> None:
    found = kmeans(kmeans=(0.03, 0.01), free=(0.08, 0.01), aux=(0.5, 0.1))
    batch = found["batch MaxVio, K-Means"]
    assert batch["ours"] == pytest.approx(0.11) and batch["low"] < 0.11 < batch["high"]
    assert "blind routing of 2,048 tokens stays under 0.09" in batch["note"]
    assert found["learned router parameters, K-Means"]["verdict"] == SHOWS
    assert found["learned router parameters, auxiliary loss"]["verdict"] == MEASURED
    assert found["validation perplexity, K-Means"]["verdict"] == CANNOT
    assert found["MaxVio, K-Means, over seeds"]["verdict"] == "not run"


def saturation(early: float, first: float, last: float) -> dict[str, dict]:
    """Two layers over three steps: `early` at both after a hundredth, `first` and `last` after a twentieth."""
    values = np.full((3, 2), 0.9)
    values[0], values[1] = early, (first, last)

    def ask(measure, *checkpoints, prompts):
        assert measure == "router_saturation" and len(checkpoints) == 3
        return wide(values, 0.01, null=(0.25, 0.24, 0.26))

    return rows_of("saturation", ask)


def test_saturation_is_judged_against_blind_choices_and_depth_by_its_sign() -> None:
    share, depth = (
        "experts of the last step, {}, after 1.3 % of training",
        "experts of the last step, last layer less first, {}, {}",
    )
    later = "after 5.3 % of training"
    found = saturation(0.3, 0.5, 0.8)
    assert found[share.format("auxiliary loss")]["verdict"] == SHOWS
    assert found[share.format("K-Means")]["verdict"] == MEASURED
    assert found[depth.format("auxiliary loss", later)]["verdict"] == SHOWS
    assert found[depth.format("K-Means", later)]["ours"] == pytest.approx(0.3)
    assert found[depth.format("K-Means", later)]["note"].endswith("above 0")
    found = saturation(0.265, 0.8, 0.5)
    assert found[share.format("auxiliary loss")]["verdict"] == DOES_NOT
    assert found[depth.format("auxiliary loss", later)]["verdict"] == DOES_NOT


def spectra(share: float, ratio: float, width: float, rows: int = 160) -> dict[str, dict]:
    """Experts whose first axes hold `share`, of `ratio` directions; the dense block and blind tokens 0.5 and 20."""

    def ask(measure, checkpoint, prompts, quantity, of="inputs", weighting="scaled"):
        explained, dense = quantity == "explained", checkpoint.startswith("dense")
        ours, theirs = (share, 0.5) if explained else (ratio, 20.0)
        value = theirs if dense else 0.4 if checkpoint.endswith("step-00000") else ours
        null = (0.5, 0.48, 0.52) if explained else (20.0, 19.0, 21.0)
        return wide([[value] * 2], width, null=null, **{"rows per expert": 160 if dense else rows})

    return rows_of("dense-control", ask)


@pytest.mark.parametrize(("share", "ratio", "verdict"), [(0.7, 12.0, SHOWS), (0.53, 20.0, DOES_NOT)])
def test_a_spectrum_is_steeper_or_not_than_the_dense_blocks(share: float, ratio: float, verdict: str) -> None:
    found = spectra(share, ratio, 0.05)
    for of in ("inputs g x", "inputs x", "outputs"):
        explained = found[f"variance in the first 10 axes of {of}, auxiliary loss less dense"]
        assert explained["ours"] == pytest.approx(share - 0.5) and explained["verdict"] == verdict
        assert found[f"participation ratio of {of}, K-Means less dense"]["verdict"] == verdict
        assert found[f"participation ratio of {of}, fully soft less dense"]["verdict"] == MEASURED


def test_blind_tokens_are_a_null_beside_it_and_unequal_rows_are_not_compared() -> None:
    found = spectra(0.7, 12.0, 0.05)
    blind = "variance in the first 10 axes of inputs g x, loss-free bias, against blind tokens"
    assert found[blind]["verdict"] == SHOWS and "ends at 0.520" in found[blind]["note"]
    assert spectra(0.55, 12.0, 0.05)[blind]["verdict"] == DOES_NOT
    trained = found["variance in the first 10 axes of inputs g x, trained less untrained"]
    assert trained["ours"] == pytest.approx(0.3) and trained["note"].endswith("above 0")
    unequal = spectra(0.7, 12.0, 0.05, rows=120)["participation ratio of outputs, K-Means less dense"]
    assert unequal["verdict"] == "not run" and unequal["note"] == "120 rows against 160"


def coupling(correlation: float, chance: float = 0.2, raw: float = 0.0) -> dict[str, dict]:
    """Score and gate at `correlation` in both layers, shuffled pairs up to `chance`."""

    def ask(measure, checkpoint, prompts, form="raw", activity="mean", control="none"):
        if measure == "router_cosine":
            facts = {"mean over pairs": raw, "common-mode share": 0.1, "rms over pairs": 0.2}
            return result(np.eye(2), **facts)
        if measure == "gradient_interference":
            return wide([0.01, 0.01], 0.001, **{"cosine between the two gradients": 0.1})
        return wide([correlation] * 2, 0.05, null=(0.0, -chance, chance))

    return rows_of("geometric-coupling", ask)


def rows_by_factor(folder: Path, **shift: float) -> dict[str, dict]:
    """Three seeds whose rows are alike by 0.1, centred by 0.2; a factor's word in its folder's name shifts both."""

    def ask(measure, checkpoint, prompts, form="raw", activity="mean", control="none"):
        if measure != "router_cosine":
            return wide([0.0], 0.1, null=(0, 0, 0), **{"cosine between the two gradients": 0.0})
        more = sum(size for word, size in shift.items() if word in checkpoint)
        more += 0.001 * sum(checkpoint.count(f"-s{seed}/") * seed for seed in range(3))
        return result(
            np.eye(2), **{"mean over pairs": 0.1 + more, "rms over pairs": 0.2 + more, "common-mode share": 0.1}
        )

    return rows_of("geometric-coupling", ask, series=planted(folder))


def test_a_factor_is_compared_with_the_base_seed_by_seed_raw_and_centred(tmp_path: Path) -> None:
    found = rows_by_factor(tmp_path, free=-0.05, SGD=0.05)
    raw, centred = "mean cosine of router rows", "rms cosine of centred rows"
    assert found[f"{raw}: auxiliary loss"]["verdict"] == SHOWS
    for form in (raw, centred):
        bias = found[f"{form}: loss-free bias, less auxiliary loss"]
        assert bias["ours"] == pytest.approx(-0.05) and bias["verdict"] == SHOWS
        moved = found[f"{form}: rows by {ROWS_BY_SGD}, less auxiliary loss"]
        assert moved["verdict"] == MEASURED and moved["note"].endswith("above 0")
        assert found[f"{form}: z-loss 0.01, less auxiliary loss"]["note"].endswith("not apart from 0")


def test_score_and_gate_are_coupled_only_above_shuffled_pairs_and_every_reading_is_named() -> None:
    readings = ("mean SiLU gate activation", "norm of the SiLU gate activations")
    for correlation, verdict in ((0.4, SHOWS), (0.22, DOES_NOT), (-0.4, DOES_NOT)):
        found = coupling(correlation)
        for reading in readings:
            assert found[f"score against gate (router logit, {reading}), auxiliary loss"]["verdict"] == verdict
            assert found[f"score against gate (router logit, {reading}), K-Means"]["verdict"] == MEASURED
    own = coupling(-0.4)["score against gate (router logit, mean SiLU gate activation), no balancing"]
    assert own["ours"] == pytest.approx(-0.4) and "below 0.200" in own["note"]


def test_one_seed_of_router_rows_decides_nothing() -> None:
    found = coupling(0.4, raw=0.6)
    assert found["mean cosine of router rows, auxiliary loss"]["verdict"] == CANNOT
    assert found["mean cosine of router rows, no balancing"]["verdict"] == MEASURED
    assert found["rms cosine of centred rows, auxiliary loss"]["verdict"] == MEASURED
    assert found["rms cosine of centred rows: z-loss 0.01, less auxiliary loss"]["verdict"] == "not run"


def asymmetry(alignment: float, soft: float, distance: float, near: float, series=None) -> dict[str, dict]:
    """Pairs of two experts in one layer: top-k at `alignment` and `distance`, soft at `soft` and `near`."""

    def ask(measure, checkpoint, prompts, form="normalised"):
        softly = "soft" in checkpoint
        if measure == "jacobian_alignment":
            value, null = soft if softly else alignment, (0.0, -0.01, 0.01)
        else:
            value, null = near if softly else distance, (0.9, 0.85, 0.95)
        table = np.array([[[1.0, value], [value, 1.0]]])
        return wide(table, 0.01, null=tuple(np.full(table.shape, part) for part in null))

    return rows_of("functional-asymmetry", ask, series=series)


def test_top_k_near_zero_and_under_the_maximum_shows() -> None:
    found = asymmetry(0.03, 0.3, 0.6, 0.3)
    assert found["Jacobian alignment, top-k"]["verdict"] == SHOWS
    assert found["Grassmann distance over its maximum, top-k"]["verdict"] == SHOWS
    assert (
        "below 0.850"
        in found["Grassmann distance over its maximum, top-k, against what unrelated subspaces have"]["note"]
    )
    assert asymmetry(0.095, 0.3, 0.6, 0.3)["Jacobian alignment, top-k"]["verdict"] == DOES_NOT
    assert asymmetry(0.03, 0.3, 0.995, 0.3)["Grassmann distance over its maximum, top-k"]["verdict"] == DOES_NOT


@pytest.mark.parametrize(("soft", "near", "verdict"), [(0.3, 0.3, SHOWS), (0.04, 0.59, DOES_NOT), (0.0, 0.8, DOES_NOT)])
def test_soft_routing_must_make_jacobians_more_alike_and_subspaces_nearer(soft, near, verdict) -> None:
    found = asymmetry(0.03, soft, 0.6, near)
    closer, farther = "Jacobian alignment, soft less top-k", "Grassmann distance, top-k less soft"
    for words, size in ((closer, soft - 0.03), (farther, 0.6 - near)):
        for which in (
            "each trained so",
            "switched at evaluation",
            "layer 0",
            "code prompts",
            "trained soft, step 6000",
        ):
            told = found[f"{words}, {which}"]
            assert told["ours"] == pytest.approx(size) and told["verdict"] == verdict, told
        assert found[f"{words}, switched to soft, step 80"]["verdict"] == MEASURED
        assert found[f"{words}, over seeds"]["verdict"] == "not run"


def test_over_seeds_the_differences_are_paired(tmp_path: Path) -> None:
    for name, soft, verdict in (("more", 0.3, SHOWS), ("less", 0.01, DOES_NOT)):
        found = asymmetry(0.03, soft, 0.6, 0.6 - soft + 0.03, planted(tmp_path / name))
        for words in ("Jacobian alignment, soft less top-k", "Grassmann distance, top-k less soft"):
            told = found[f"{words}, over seeds"]
            assert told["ours"] == pytest.approx(soft - 0.03) and told["verdict"] == verdict


def signatures(within: float, across: float, p: float = 0.001, accuracy: float = 0.9) -> dict[str, dict]:
    """Two layers; the second's effect is 1 above the first's; blind routing at 0.8."""

    def ask(measure, checkpoint, prompts, quantity="cohens_d", form="plain"):
        if measure == "signature_baselines":
            axes = (Axis("layer", ("0", "1")), Axis("quantity", ("within", "across", "permuted", "balanced")))
            return wide([[within, across, 0.5, 0.8]] * 2, 0.02, axes=axes)
        if measure == "signature_classifier":
            controls = dict.fromkeys(
                ("always the most frequent category", "from the prompt's length alone", "from its token ids alone"), 0.3
            )
            value = accuracy if checkpoint.endswith("step-06000") else 0.5
            return result(value, null=(0.25, 0.2, 0.35), **{"sd over folds": 0.1, **controls})
        if quantity != "cohens_d":
            return wide([within if quantity == "within" else across] * 2, 0.02)
        start = 0.0 if checkpoint.endswith("step-00000") else 1.0
        facts = {"permutation p": p, "Cohen's d": start + 0.5}
        return wide([start, start + 1], 0.1, null=(0.0, -0.1, 0.1), **facts)

    return rows_of("routing-signatures", ask)


def test_signatures_show_only_apart_by_permutation_and_beyond_their_baselines() -> None:
    found = signatures(0.9, 0.6)
    positive = ("similarity within categories", "similarity, within less load-balance baseline", "Cohen's d")
    assert {found[name]["verdict"] for name in (*positive, "Cohen's d, last layer less first")} == {SHOWS}
    assert found["similarity, load-balance baseline less across"]["ours"] == pytest.approx(0.2)
    assert found["similarity, within less permutation baseline"]["note"].endswith("above 0")
    weak = signatures(0.75, 0.74, p=0.2, accuracy=0.3)
    assert {weak[name]["verdict"] for name in (*positive, "classifier's accuracy")} == {DOES_NOT}


def test_the_effect_is_followed_over_training_and_the_classifier_held_to_controls() -> None:
    found = signatures(0.9, 0.6)
    assert "above 0.100" in found["Cohen's d, mean over layers, step 0"]["note"]
    grown = found["Cohen's d, trained less untrained"]
    assert grown["ours"] == pytest.approx(1.0) and grown["note"].endswith("above 0")
    assert found["Cohen's d, mean over layers, length-matched"]["verdict"] == MEASURED
    control = found["classifier's accuracy, control: its token ids alone (bag of tokens)"]
    assert control["ours"] == 0.3 and "+0.600 beside it" in control["note"]
    assert found["classifier's accuracy, control: the untrained router"]["ours"] == 0.5
