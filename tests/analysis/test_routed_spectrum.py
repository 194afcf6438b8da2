"""Planted spectra, through statistic, measure and framework: known variances, few directions, few rows."""

import dataclasses
import re

import numpy as np
import pytest
import torch
from scipy.linalg import subspace_angles

from analysis.inference import evaluate
from analysis.linalg import orthonormal
from analysis.measure import Inputs, get
from analysis.result import Reason
from analysis.statistic import State
from analysis.subspaces import Cut, principal, zeros_per_row
from tests.analysis.clouds import HELD, N, cloud, common, generator, routed, span


def outputs(experts, shared=None):
    """What experts gave for the same tokens."""
    state = common(experts[0])
    output = torch.stack(experts, 1)[None]
    own = torch.full_like(output[:, :, 0], torch.nan) if shared is None else shared[None]
    shape = dataclasses.replace(state.shape, experts=len(experts), shared=int(shared is not None))
    return State("expert_rows", shape, HELD, {**state.arrays, "output": output, "shared": own})


def spectrum(clouds, everything=None, given=None, shared=None, weights=None, **knobs):
    state = routed(clouds, weights)
    everything = torch.cat(clouds) if everything is None else everything
    states = {"routed_rows": state, "common_rows": common(everything), "expert_rows": outputs(given or clouds, shared)}
    shape = dataclasses.replace(state.shape, shared=states["expert_rows"].shape.shared)
    return evaluate(get("routed_spectrum"), (Inputs(shape, states),), {"n": N, **knobs})


@pytest.mark.slow
def test_spectra_of_known_variances():
    """Variances 4, 4, 1, 1 of exactly orthogonal columns: one axis has .4 of them, the participation is 100/34."""
    columns = orthonormal(torch.cat([torch.ones(1, 64), torch.randn(4, 64, generator=generator())]).double())[1:]
    x = columns.T * 8 * torch.tensor([2.0, 2.0, 1.0, 1.0], dtype=torch.float64) @ torch.eye(4, 20, dtype=torch.float64)
    p = np.array([0.4, 0.4, 0.1, 0.1])
    for quantity, n, expected in [
        ("explained", 1, 0.4),
        ("explained", 3, 0.9),
        ("participation", 1, 100 / 34),
        ("entropy_rank", 1, float(np.exp(-(p * np.log(p)).sum()))),
    ]:
        for of in ("inputs", "outputs"):
            found = spectrum([x, x], quantity=quantity, n=n, of=of)
            np.testing.assert_allclose(found.values, expected, rtol=1e-9, err_msg=f"{quantity} {of}")


def test_an_expert_of_few_directions_leaves_the_band_of_blind_routing():
    narrow = cloud(span(0, 3), 1, noise=0.3)
    wide = [cloud(span(e, 12), e, noise=0.3) for e in range(2, 6)]
    result = spectrum([narrow, *wide], quantity="participation")
    low = np.broadcast_to(result.null.low, result.values.shape)
    assert result.values[0, 0] < low[0, 0] - 1
    assert result.facts["all tokens"] == pytest.approx(float(np.mean(result.null.mean)))
    assert isinstance(spectrum([narrow, narrow], of="outputs").null, Reason)
    assert isinstance(spectrum([narrow, narrow], matched=False).null, Reason)


def test_a_collapsed_expert_has_no_spectrum_and_a_duplicate_the_same():
    x = cloud(span(0, 6), 1, noise=0.1)
    found = spectrum([x, x, torch.ones_like(x)])
    assert found.values[0, 0] == found.values[0, 1] and np.isnan(found.values[0, 2])
    assert any("all the same" in caveat for caveat in found.caveats)
    given = spectrum([x, x], given=[x, torch.ones_like(x)], of="outputs", shared=x)
    assert np.isnan(given.values[0, 1]) and given.axes[1].labels[-1] == "shared"
    assert given.facts["mean of the shared expert (last row)"] == given.values[0, 2] == given.values[0, 0]
    assert given.facts["experts"] == given.facts["experts in each layer"] == 1


@pytest.mark.slow
def test_knobs_that_have_no_part_in_outputs_are_named_and_those_that_have_are_not():
    clouds = [cloud(span(e, 6), e, rows=r, noise=0.3) for e, r in enumerate((60, 90, 12))]
    given, g = [cloud(span(e, 6), e) for e in range(3)], torch.rand(90, dtype=torch.float64, generator=generator(4))
    changes = {"weighting": "plain", "matched": False, "n": 2}
    ask = lambda **knobs: spectrum(clouds, given=given, weights=[g[: len(x)] for x in clouds], **knobs)  # noqa: E731
    for quantity in ("explained", "participation"):
        for of in ("inputs", "outputs"):
            plain, inert = ask(of=of, quantity=quantity), set()
            for knob, value in changes.items():
                other = ask(of=of, quantity=quantity, **{knob: value}).values
                inert |= {knob} if np.array_equal(other, plain.values, equal_nan=True) else set()
            said = " ".join(c for c in plain.caveats if c.endswith("change nothing."))
            assert inert == set(re.findall(r"\b(?:weighting|matched|n)\b", said)), (quantity, of)


def test_fewer_rows_alone_lower_a_rank():
    x = torch.randn(200, 60, dtype=torch.float64, generator=generator())
    few, many = (spectrum([x[:r], x[:r]], quantity="entropy_rank").values[0, 0] for r in (25, 200))
    assert few < 25 and many > 45


def test_weightings_are_three_different_analyses():
    """Weights that grow along one axis: g x stretches along it, counting x g times does so less, leaving g out not."""
    x = cloud(span(0, 8), 1, rows=200, noise=0.1)
    g = torch.rand(200, dtype=torch.float64, generator=generator(4)).float().double()
    state = routed([x, x], [g, g])
    counted = np.cov(x.numpy().T, aweights=g.numpy())
    for weighting, covariance in [
        ("plain", np.cov(x.numpy().T)),
        ("scaled", np.cov((x * g[:, None]).numpy().T)),
        ("weighted", counted),
    ]:
        values = np.linalg.eigvalsh(covariance)[::-1]
        mixed = {"routed_rows": state, "common_rows": common(x), "expert_rows": outputs([x, x])}
        found = evaluate(get("routed_spectrum"), (Inputs(state.shape, mixed),), {"n": N, "weighting": weighting})
        assert found.values[0, 0] == pytest.approx(values[:N].sum() / values.sum(), rel=1e-9), weighting


def with_zeros(batch, expert):
    """g x of every token, as it is kept; 0 where the expert did not serve."""
    chosen = (batch.indices == expert) & batch.served
    g = torch.where(chosen, batch.weights.float(), 0.0).sum(-1)
    return (g[:, None].double() * batch.expert_input.bfloat16().double()).numpy()


def test_with_zeros_the_tokens_an_expert_did_not_serve_are_rows_of_nothing(world):
    """Against the covariance of all tokens, written out: in the spectrum, and in the axes of two experts."""
    batches = world.layers(lengths=(14,) * 16)
    names = {*get("routed_spectrum").statistics, *get("grassmann_distance").statistics}
    side = Inputs(world.SHAPE, {name: world.state_of(name, batches) for name in names})
    knobs = {"weighting": "zeros", "n": 2, "matched": False}
    found = evaluate(get("routed_spectrum"), (side,), knobs).values
    distances = evaluate(get("grassmann_distance"), (side,), knobs).values
    for layer, batch in enumerate(batches):
        spans = []
        for expert in range(world.SHAPE.experts):
            variances, axes = np.linalg.eigh(np.cov(with_zeros(batch, expert).T))
            assert found[layer, expert] == pytest.approx(variances[-2:].sum() / variances.sum(), rel=1e-9)
            spans.append(axes[:, -2:])
        expected = np.linalg.norm(subspace_angles(spans[0], spans[1]))
        assert distances[layer, 0, 1] == pytest.approx(expected, rel=1e-9)


def test_a_full_sample_stands_for_all_tokens_that_were_served():
    """120 rows of 900 served, of 3,000 tokens: C + (1 - p) m m' with p = 0.3, of the rows that are kept."""
    x = cloud(span(0, 3), 1, noise=0.3)
    state = routed([x, cloud(span(1, 3), 2, noise=0.3)])
    counts = torch.zeros(8, 1, 2, dtype=torch.int64)
    counts[0, 0], counts[5, 0] = torch.tensor([400, 100]), torch.tensor([500, 1400])
    seen = torch.zeros(8, 1, dtype=torch.int64)
    seen[0], seen[5] = 1000, 2000
    state = dataclasses.replace(state, arrays={**state.arrays, "served": counts, "seen": seen})
    torch.testing.assert_close(zeros_per_row(state), torch.tensor([[2100 / 900, 1.0]]).double())
    torch.testing.assert_close(zeros_per_row(state, (5, 6)), torch.tensor([[3.0, 600 / 1400]]).double())
    variances = next(principal(state, Cut(2, len(x), 3), "zeros")).variances[0]
    mean = x.mean(0)
    whole = 0.3 * (np.cov(x.numpy().T, bias=True) + 0.7 * np.outer(mean, mean))
    np.testing.assert_allclose(variances, np.linalg.eigvalsh(whole)[::-1], rtol=1e-9)


def test_blind_routing_with_zeros_stays_in_its_band(world):
    """Every expert takes any token: the mean over experts of the share of two axes lies in the layer's band."""
    side = Inputs(
        world.SHAPE,
        {n: world.state_of(n, world.layers(lengths=(30,) * 16)) for n in get("routed_spectrum").statistics},
    )
    for weighting in ("scaled", "zeros"):
        result = evaluate(get("routed_spectrum"), (side,), {"weighting": weighting, "n": 2})
        low, high = (np.broadcast_to(bound, result.values.shape) for bound in (result.null.low, result.null.high))
        assert ((low <= result.values) & (result.values <= high)).mean() > 0.8, weighting
