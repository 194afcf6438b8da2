"""Intervals from blocks of prompts: by hand, and by how often they hold the truth."""

import dataclasses
import math
from functools import partial

import numpy as np
import pytest
import torch
from scipy.stats import binom
from scipy.stats import t as student

from analysis import bounds, inference
from analysis.bounds import jackknife
from analysis.errors import BadDeclaration
from analysis.inference import content_generator, evaluate
from analysis.measure import Inputs, Values, get
from analysis.result import Axis, Interval, Reason, Result
from analysis.slots import BLOCKS, Prompts, text_digest


def test_jackknife_of_a_mean_by_hand():
    numbers = torch.tensor([1.0, 2.0, 4.0, 9.0], dtype=torch.float64)

    def mean(block):
        return numbers.mean() if block is None else numbers[torch.arange(4) != block].mean()

    centre, low, high = jackknife(mean, (0, 1, 2, 3))
    # For a mean the jackknife is the textbook interval: mean, s / sqrt(n), t(3) = 3.182446.
    half = 3.182446305 * float(numbers.std()) / 2
    assert float(centre) == 4
    assert float(low) == pytest.approx(4 - half, rel=1e-8)
    assert float(high) == pytest.approx(4 + half, rel=1e-8)


def test_jackknife_corrects_the_bias_of_a_plug_in_variance():
    numbers = torch.tensor([1.0, 2.0, 4.0, 9.0], dtype=torch.float64)

    def variance(block):
        kept = numbers if block is None else numbers[torch.arange(4) != block]
        return kept.var(correction=0)

    centre, _, _ = jackknife(variance, (0, 1, 2, 3), plug_in=True)
    assert float(centre) == pytest.approx(float(numbers.var()), rel=1e-12)


def test_the_interval_of_a_load_by_hand(world):
    measure = get("expert_load")
    (side,) = world.inputs_for(measure)
    state = side.states["prompt_counts"]
    blocks = sorted(set(state.prompts.blocks))
    parts = []
    for block in blocks:
        rows = [r for r, b in enumerate(state.prompts.blocks) if b != block]
        counts = state["selected"][rows].sum(0).double()
        parts.append(counts / counts.mean(-1, keepdim=True))
    parts, n = torch.stack(parts), len(blocks)
    se = ((n - 1) / n * ((parts - parts.mean(0)) ** 2).sum(0)).sqrt()
    result = evaluate(measure, (side,), {})
    half = (result.interval.high - result.interval.low) / 2
    t = {7: 2.446911851, 8: 2.364624252, 6: 2.570581836, 5: 2.776445105}[n]
    np.testing.assert_allclose(half, t * se.numpy(), rtol=1e-8)
    assert f"over {n} blocks" in result.interval.how


def test_the_mean_over_layers_has_the_interval_of_a_mean_of_its_own(world):
    measure = get("load_violation")
    (side,) = world.inputs_for(measure)
    state = side.states["prompt_counts"]
    blocks, parts = sorted(set(state.prompts.blocks)), []
    for block in blocks:
        counts = state["selected"][[r for r, b in enumerate(state.prompts.blocks) if b != block]].sum(0).double()
        parts.append((counts.amax(-1) / counts.mean(-1) - 1).mean())
    parts = np.array(parts)
    half = student.ppf(0.975, len(parts) - 1) * np.sqrt((len(parts) - 1) * parts.var())
    result = evaluate(measure, (side,), {})
    np.testing.assert_allclose(result.interval.over_layers, result.values.mean() + np.array([-half, half]), rtol=1e-10)
    assert Result.from_json(result.to_json()).interval.over_layers == result.interval.over_layers
    assert evaluate(get("expert_load"), (side,), {}).interval.over_layers is None


def test_layers_that_say_the_same_are_no_more_certain_together_and_one_without_a_value_is_left_out(world):
    def alike(counts, *, blind=False):
        share = counts["selected"].sum(0)[0].double()
        values = (share.amax() / share.mean() - 1).expand(len(world.SHAPE.layers)).clone()
        values[1:] = math.nan if blind else values[1:]
        return values

    base = get("load_violation")
    for function in (alike, partial(alike, blind=True)):
        measure = dataclasses.replace(base, function=lambda counts, f=function, **_: f(counts))
        found = evaluate(measure, world.inputs_for(base), {}).interval
        np.testing.assert_allclose(found.over_layers, (found.low[0], found.high[0]), rtol=1e-12)


def test_too_few_blocks_show_no_interval(world):
    batch = world.routes(lengths=(5, 5))
    side = Inputs(world.SHAPE, {"prompt_counts": world.state_of("prompt_counts", [batch])})
    interval = evaluate(get("expert_load"), (side,), {}).interval
    assert isinstance(interval, Reason) and "the jackknife needs 4" in interval.reason


def test_a_measure_undefined_without_a_block_says_so(world):
    """The only two prompts of category a share a block: without it there is no pair within."""
    names = [f"p{i}" for i in range(400)]
    block = {name: int(text_digest(name)[:8], 16) % BLOCKS for name in names}
    twins = [name for name in names if block[name] == 0][:2]
    others = [next(name for name in names if block[name] == b) for b in range(1, 7)]
    chosen = twins + others
    batch = world.routes(lengths=(20,) * 8)
    prompts = Prompts(tuple(chosen), tuple(map(text_digest, chosen)), ("a", "a", *"bcdefg"))
    batch = dataclasses.replace(batch, prompts=prompts)
    side = Inputs(world.SHAPE, {"prompt_counts": world.state_of("prompt_counts", [batch])})
    result = evaluate(get("signature_effect"), (side,), {})
    assert isinstance(result.interval, Reason)
    assert "not defined with a block of prompts left out" in result.interval.reason


def test_an_expert_seen_in_one_block_only_has_no_bounds_and_the_interval_says_why(world):
    batch = world.routes()
    here = torch.tensor(batch.prompts.blocks)[batch.keys.prompt] == batch.prompts.blocks[0]
    indices = torch.where((batch.indices == 0) & ~here[None, :, None], 6, batch.indices)
    batch = dataclasses.replace(batch, indices=indices)
    side = Inputs(world.SHAPE, {"coactivation_counts": world.state_of("coactivation_counts", [batch])})
    result = evaluate(get("coactivation"), (side,), {})
    assert not np.isnan(result.values).any()
    assert np.isnan(result.interval.low[:, 0]).all()
    assert "NaN where the value is undefined" in result.interval.how
    lost = np.isnan(result.interval.low).sum()
    caveat = f"No interval for {lost} of {result.values.size} values: undefined without one of the blocks of prompts."
    assert lost >= 18 and result.caveats[-1] == caveat


def test_an_interval_is_withheld_for_the_knob_values_that_leave_it_no_guide(world):
    measure = dataclasses.replace(get("expert_load"), no_interval_if={"count": {"served": "a planted reason"}})
    found = {count: evaluate(measure, world.inputs_for(measure), {"count": count}) for count in ("selected", "served")}
    assert isinstance(found["selected"].interval, Interval)
    assert found["served"].interval == Reason("a planted reason")


def test_a_value_that_is_undefined_anyway_is_not_said_to_lack_an_interval(world):
    measure = dataclasses.replace(
        get("expert_load"), function=lambda counts, *, count: counts["selected"].sum(0).double().where(LEFT, math.nan)
    )
    result = evaluate(measure, world.inputs_for(measure), {})
    assert np.isnan(result.interval.low).sum() == 3 and not any("No interval" in c for c in result.caveats)


LEFT = torch.arange(6) > 0


def test_an_answer_without_a_value_has_a_reason_for_an_interval(world):
    measure = dataclasses.replace(
        get("expert_load"), function=lambda counts, *, count: counts["selected"].sum(0).double() * math.nan
    )
    assert evaluate(measure, world.inputs_for(measure), {}).interval == Reason(inference.NO_VALUE)


def test_values_that_all_lack_bounds_have_a_reason_for_an_interval(world):
    def whole(counts, *, count):
        return counts["selected"].sum(0).double() if len(counts.prompts) == 16 else torch.full((3, 6), math.nan)

    measure = dataclasses.replace(get("expert_load"), function=whole)
    result = evaluate(measure, world.inputs_for(measure, lengths=(7,) * 16), {})
    assert not np.isnan(result.values).any()
    assert result.interval == Reason("no value has bounds: undefined without one of the blocks of prompts")


def test_the_seed_of_a_null_follows_the_content_and_not_its_order(world):
    measure = get("load_violation")
    (side,) = world.inputs_for(measure)
    (other,) = world.inputs_for(measure, 1)
    state = side.states["prompt_counts"]
    turned = dataclasses.replace(side, states={"prompt_counts": state.take(list(range(15, -1, -1)))})
    seeds = [content_generator(measure, (s,)).initial_seed() for s in (side, turned, other)]
    assert seeds[0] == seeds[1] != seeds[2]


def test_values_that_do_not_fit_their_axes_are_refused(world):
    measure = dataclasses.replace(
        get("expert_load"), function=lambda counts, *, count: Values(torch.zeros(2), (Axis("layer", ("1",)),))
    )
    with pytest.raises(BadDeclaration, match=r"axes have sizes \(1,\), its values \(2,\)"):
        evaluate(measure, world.inputs_for(measure), {})


def test_tokens_and_prompts_are_counted(world):
    for name in ("expert_load", "coactivation"):
        result = evaluate(get(name), world.inputs_for(get(name), lengths=(7,) * 16), {})
        assert (result.tokens, result.prompts) == (112, 16)
    weights_only = evaluate(get("router_cosine"), world.inputs_for(get("router_cosine")), {})
    assert (weights_only.tokens, weights_only.prompts) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["expert_load", "load_entropy"])
def test_intervals_hold_the_truth_about_as_often_as_they_say(name, world):
    """Prompts with tastes of their own around a common, known preference; 60 samples of 80 prompts."""
    measure, held, draws = get(name), 0, 60
    preference = torch.linspace(-0.5, 0.5, 6)
    truth = _asked(measure, preference, 12_345, 4000, world).values
    for seed in range(draws):
        result = _asked(measure, preference, seed, 80, world)
        assert isinstance(result.interval, Interval)
        cell = (0,) if result.values.ndim == 1 else (0, 5)
        held += result.interval.low[cell] <= truth[cell] <= result.interval.high[cell]
    # Known to fall a little short of 95 % (88 to 94 % in larger simulations); far below would be a fault.
    assert binom.ppf(0.001, draws, 0.90) <= held


def _asked(measure, preference, seed, prompts, world):
    shape = dataclasses.replace(world.SHAPE, layers=("0",))
    batch = world.routes(shape=shape, lengths=(10,) * prompts, tag=f"{seed} ")
    generator = torch.Generator().manual_seed(seed)
    taste = preference + 0.5 * torch.randn(prompts, 6, generator=generator)
    indices = (taste[batch.keys.prompt] + torch.randn(1, len(batch.keys), 6, generator=generator)).topk(2).indices
    state = world.state_of("prompt_counts", [dataclasses.replace(batch, indices=indices)])
    return evaluate(measure, (Inputs(shape, {"prompt_counts": state}),), {})


def test_the_level_is_the_one_that_is_printed():
    assert bounds.LEVEL == 0.95 and math.isclose(bounds.FEWEST_BLOCKS, 4)
