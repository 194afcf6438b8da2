"""The shared expert's own row in measures of one expert and of weights, outputs and subspaces: read one by one."""

import dataclasses

import numpy as np
import pytest
import torch
from torch.func import jacrev, vmap
from torch.nn import functional as F

from analysis.common_tokens import common_tokens
from analysis.inference import _call, _values, evaluate
from analysis.measure import Inputs, get
from analysis.result import Interval, Null, Reason
from analysis.sampling import token_hash
from analysis.subspaces import row_counts
from tests.analysis.beside import EXPERTS, side_of, wide_expert, with_shared

ROWS = ("jacobian_spectrum", "jacobian_linear_share", "expert_contribution", "routed_spectrum")
TABLES = ("subspace_overlap", "centred_kernel_alignment", "weight_similarity")
OTHERS = ("principal_angles", "expert_saliency", "redundancy_map", "expert_embedding")
KNOBS = {name: {"n": 2} for name in ("routed_spectrum", "subspace_overlap", "principal_angles")}
CLOSE = {"rtol": 1e-9, "atol": 1e-9}
COPIED = 3


def sides(world, batches):
    """All that these measures read; router rows are made up, and no measure here says anything of them."""
    side = side_of(world, batches, *ROWS, *TABLES, *OTHERS)
    rows = torch.ones(len(batches), EXPERTS, 5, dtype=torch.float64)
    return dataclasses.replace(side, weights=side.weights | {"router_weight": rows})


def ask(name, side, **knobs):
    """The whole answer."""
    read = {each: side.states[each] for each in get(name).statistics}
    weights = {each: side.weights[each] for each in get(name).reads if each in side.weights}
    return evaluate(get(name), (Inputs(side.shape, read, weights),), KNOBS.get(name, {}) | knobs)


def told(name, side, **knobs):
    """Its values and facts alone: null and interval take longer."""
    return _values(_call(get(name).function, get(name), (side,), get(name).settle(KNOBS.get(name, {}) | knobs)))


@pytest.fixture(scope="module")
def wide(world):
    """The shared expert is another, 7 wide where the routed ones are 4 and the model is 5."""
    batches = with_shared(world, lambda own: wide_expert(), lengths=(8,) * 16)
    return sides(world, batches), batches


@pytest.fixture(scope="module")
def copied(world):
    """The shared expert is routed expert 3."""
    batches = with_shared(world, lambda own: own[COPIED], lengths=(8,) * 16)
    return sides(world, batches), batches


@pytest.fixture(scope="module")
def alone(world, wide):
    """The same routed experts without a shared one."""
    shape = dataclasses.replace(wide[1][0].shape, shared=0)
    gone = {"shape": shape, "shared": None, "shared_weight": None, "shared_norms": None}
    return sides(world, [dataclasses.replace(batch, **gone) for batch in wide[1]])


def jacobians(expert, x):
    return vmap(jacrev(lambda row: expert(row[None])[0]))(x)


def energies(jacobian):
    return np.linalg.svd(jacobian.numpy(), compute_uv=False) ** 2


@pytest.mark.parametrize("tokens", ["common", "served"])
def test_a_wide_shared_expert_acts_along_as_many_directions_as_autograd_says(wide, tokens):
    side, batches = wide
    found = {
        s: told("jacobian_spectrum", side, tokens=tokens, summary=s) for s in ("participation", "entropy", "first")
    }
    for layer, batch in enumerate(batches):
        x = batch.expert_input if tokens == "served" else batch.expert_input[common_tokens(batch)[0]]
        e = energies(jacobians(batch.shared, x).mean(0))
        p = e / e.sum()
        expected = {"participation": 1 / (p**2).sum(), "entropy": np.exp(-(p * np.log(p)).sum()), "first": p.max()}
        for summary, answer in found.items():
            assert float(answer.values[layer, -1]) == pytest.approx(expected[summary], rel=1e-9), summary


def test_its_linear_share_is_that_of_its_own_jacobians(wide):
    side, batches = wide
    found = told("jacobian_linear_share", side, corrected=False)
    for layer, batch in enumerate(batches):
        each = jacobians(batch.shared, batch.expert_input[common_tokens(batch)[0]])
        share = each.mean(0).square().sum() / each.square().sum((1, 2)).mean()
        assert float(found.values[layer, -1]) == pytest.approx(float(share), rel=1e-9)


def test_it_gives_each_token_its_gated_length_over_the_mean_of_the_routed(wide):
    side, batches = wide
    found = ask("expert_contribution", side)
    for layer, batch in enumerate(batches):
        mine = [
            float(g) * float(batch.shared(x[None]).norm())
            for g, x in zip(batch.shared_weight, batch.expert_input, strict=True)
        ]
        theirs = (batch.weights * batch.output_norms)[batch.served]
        assert found.values[layer, -1] == pytest.approx(np.mean(mine) / float(theirs.double().mean()), rel=1e-6)
    assert np.isnan(found.null.low[:, -1]).all() and not np.isnan(found.null.low[:, :-1]).any()


@pytest.mark.parametrize("weighting", ["scaled", "weighted", "plain"])
def test_its_inputs_are_all_tokens_at_as_many_rows_as_a_routed_expert_gives(wide, weighting):
    side, batches = wide
    share = told("routed_spectrum", side, weighting=weighting)
    rows = share.facts["rows per expert"]
    assert rows == int(row_counts(side.routed_rows).min())
    for layer, batch in enumerate(batches):
        mine = token_hash(batch.prompts, batch.keys).argsort()[:rows]
        x, g = batch.expert_input[mine].bfloat16().double().numpy(), batch.shared_weight[mine].float().double().numpy()
        covariance = np.cov(
            (x * g[:, None] if weighting == "scaled" else x).T, aweights=g if weighting == "weighted" else None, ddof=0
        )
        values = np.linalg.eigvalsh(covariance)[::-1]
        assert float(share.values[layer, -1]) == pytest.approx(values[:2].sum() / values.sum(), rel=1e-7)


def test_its_outputs_vary_and_align_as_those_of_its_own_code(wide):
    side, batches = wide
    spectrum, alike = told("routed_spectrum", side, of="outputs"), told("centred_kernel_alignment", side, biased=True)
    for layer, batch in enumerate(batches):
        mine = token_hash(batch.prompts, batch.keys).argsort()[:64]
        x = batch.expert_input[mine]
        centred = [y - y.mean(0) for y in (e(x).bfloat16().double() for e in (*batch.experts, batch.shared))]
        values = np.linalg.svd(centred[-1].numpy(), compute_uv=False) ** 2
        assert float(spectrum.values[layer, -1]) == pytest.approx(values[:2].sum() / values.sum(), rel=1e-9)
        grams = torch.stack([y @ y.mT for y in centred]).flatten(1)
        np.testing.assert_allclose(alike.values[layer], F.cosine_similarity(grams[:, None], grams, dim=-1), **CLOSE)


def test_its_overlaps_and_angles_are_those_of_its_subspace(wide):
    side, _ = wide
    overlap, angles = told("subspace_overlap", side), ask("principal_angles", side, pair="shared")
    spans = overlap.arrays["bases"].double()
    assert spans.shape[1] == EXPERTS + 1 and angles.facts["pairs"] == 3 * EXPERTS
    for layer, own in enumerate(spans):
        cosines = torch.linalg.svdvals(own[:-1] @ own[-1].mT)
        np.testing.assert_allclose(overlap.values[layer, -1, :-1], cosines.square().mean(-1), atol=1e-6)
        np.testing.assert_allclose(angles.values[layer], cosines.clamp(max=1).arccos().mean(0), atol=1e-3)
    assert isinstance(angles.null, Null)


def test_weights_are_compared_neuron_by_neuron_where_there_are_as_many(copied, wide):
    side, batches = copied
    for minus_mean in (False, True):
        found = told("weight_similarity", side, minus_mean=minus_mean)
        for layer, batch in enumerate(batches):
            rows = torch.stack([torch.cat([e.gate.flatten(), e.up.flatten(), e.down.flatten()]) for e in batch.experts])
            own = rows[COPIED] - (rows.mean(0) if minus_mean else 0)
            rows = rows - (rows.mean(0) if minus_mean else 0)
            np.testing.assert_allclose(found.values[layer, -1, :-1], F.cosine_similarity(rows, own, dim=-1), **CLOSE)
        np.testing.assert_allclose(found.values[:, -1, COPIED], 1, **CLOSE)
    other = ask("weight_similarity", wide[0])
    assert np.isnan(other.values[:, -1]).all() and np.isnan(other.values[:, :, -1]).all()
    assert not np.isnan(other.values[:, :-1, :-1]).any()
    assert any(c.startswith("NaN: the shared expert has another number of neurons") for c in other.caveats)


@pytest.mark.parametrize("name", [*ROWS, *TABLES])
def test_a_row_more_leaves_the_routed_experts_and_their_averages_what_they_were(wide, alone, name):
    whole, part = ask(name, wide[0]), ask(name, alone)
    ranks = range(1, part.values.ndim)
    assert all(whole.axes[n].labels == (*part.axes[n].labels, "shared") for n in ranks)
    assert part.axes[1].labels == tuple(f"E{e}" for e in range(EXPERTS))
    cut = (slice(None), *(slice(EXPERTS) for _ in ranks))
    np.testing.assert_allclose(whole.values[cut], part.values, **CLOSE)
    if isinstance(part.interval, Interval):
        for bound in ("low", "high"):
            np.testing.assert_allclose(getattr(whole.interval, bound)[cut], getattr(part.interval, bound), **CLOSE)
    if isinstance(whole.null, Null):
        low, high = (np.broadcast_to(getattr(whole.null, bound), whole.values.shape) for bound in ("low", "high"))
        assert (low <= high)[~np.isnan(low)].all()
        assert np.isnan(low[:, -1]).all() == (name == "expert_contribution")  # nothing is dealt to it
    assert whole.facts.keys() - part.facts.keys() <= {
        "mean with the shared expert (last row)",
        "mean of the shared expert (last row)",
    }
    for fact, told in part.facts.items():
        assert whole.facts[fact] == (told if isinstance(told, str) else pytest.approx(told, rel=1e-9)), fact


@pytest.mark.parametrize("name", OTHERS)
def test_what_has_no_row_for_it_never_sees_it(wide, alone, name):
    """Saliency (what would be pruned), pairs to merge, the map of experts, means over pairs of routed experts."""
    whole, part = told(name, wide[0]), told(name, alone)
    assert whole.axes == part.axes and whole.values.shape == part.values.shape
    np.testing.assert_allclose(whole.values, part.values, **CLOSE)


def test_there_are_no_angles_with_a_shared_expert_where_there_is_none(alone):
    found = ask("principal_angles", alone, pair="shared")
    assert np.isnan(found.values).all() and isinstance(found.null, Reason)
    assert any(caveat.startswith("NaN: no shared expert") for caveat in found.caveats)


@pytest.mark.parametrize("name", ["jacobian_spectrum", "routed_spectrum"])
def test_an_average_says_how_many_experts_of_each_layer_it_is_of(world, wide, name):
    """One expert of one layer serves nobody."""
    batches = [dataclasses.replace(b, served=b.served & ((b.indices != 0) | (b.layer != 1))) for b in wide[1]]
    knobs = {"tokens": "served"} if name == "jacobian_spectrum" else {}
    found = told(name, side_of(world, batches, name), **knobs)
    assert found.facts["experts"] == 3 * EXPERTS - 1
    assert found.facts["experts in each layer"] == f"{EXPERTS}, {EXPERTS - 1}, {EXPERTS}"
    assert found.facts["mean over experts"] == pytest.approx(np.nanmean(found.values[:, :-1]), rel=1e-12)
