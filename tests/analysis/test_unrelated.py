"""Whether matched experts are more alike than those of sides that nothing relates: its level, and what it finds."""

import numpy as np
import pytest
import torch
from scipy.stats import binom

from analysis import unrelated
from analysis.cosines import unit_rows
from analysis.evidence import likeness
from analysis.inference import evaluate
from analysis.measure import Inputs, get
from analysis.slots import Shape
from analysis.unrelated import beside_another_prompt, beyond_unrelated, correlations, turned

DRAWN, PROMPTS, LONG, EXPERTS = 40, 16, 20, 6


def topical(seed, prompts=PROMPTS, taste=1.0):
    """Who takes each token, two of six experts, where every prompt has a taste of its own."""
    generator = torch.Generator().manual_seed(seed)
    scores = taste * torch.randn(prompts, 1, EXPERTS, generator=generator)
    noise = -torch.log(-torch.log(torch.rand(prompts, LONG, EXPERTS, generator=generator)))
    chosen = (scores + noise).flatten(0, 1).topk(2).indices
    return torch.zeros(prompts * LONG, EXPERTS, dtype=torch.float64).scatter_(-1, chosen, 1)


def found(one, other, reorder, seed):
    prompt = torch.arange(PROMPTS).repeat_interleave(LONG)

    def drawn(draws, generator):
        orders = [reorder(prompt, generator) for _ in range(draws)]
        yield torch.stack([correlations(one, other[order]) for order in orders])

    return beyond_unrelated(correlations(one, other)[None], drawn, False, torch.Generator().manual_seed(seed))[1]


def test_routers_whose_prompts_have_tastes_of_their_own_pass_for_related_at_the_level_and_by_tokens_far_above(
    monkeypatch,
):
    monkeypatch.setattr(unrelated, "DRAWS", 39)
    monkeypatch.setattr(unrelated, "FEWEST", 39)
    tokens = lambda prompt, generator: torch.randperm(len(prompt), generator=generator)  # noqa: E731
    sides = [(topical(2 * seed), topical(2 * seed + 1), seed) for seed in range(DRAWN)]
    whole, single = (
        sum(float(found(a, b, how, seed)) <= 0.05 for a, b, seed in sides) for how in (beside_another_prompt, tokens)
    )
    assert whole <= binom.ppf(0.999, DRAWN, 0.05)
    assert single > DRAWN / 3


def test_half_of_the_experts_under_other_numbers_are_found_beyond_chance():
    one, other = topical(0), topical(1)
    other[:, [4, 0, 2]] = one[:, [1, 3, 5]]
    assert float(found(one, other, beside_another_prompt, 0)) == 1 / (1 + unrelated.DRAWS)


def test_a_prompt_stands_beside_one_other_whole_and_in_order():
    prompt = torch.tensor([0, 0, 2, 2, 2, 2, 3, 3])  # prompt 1 has no token
    order = beside_another_prompt(prompt, torch.Generator().manual_seed(0))
    partner = [prompt[order][prompt == p].unique().tolist() for p in (0, 2, 3)]
    assert sorted(partner) == [[0], [2], [3]]
    for p in (0, 2, 3):
        assert (order[prompt == p].diff() >= 0).all()
    alone = torch.zeros(4, dtype=torch.int64)
    assert beside_another_prompt(alone, torch.Generator()).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("sizes", [(4, 5, 7), (6, 3, 5)], ids=["fewer experts than dimensions", "more"])
def test_a_random_turn_is_that_of_a_uniform_orthogonal_matrix(sizes):
    experts, others, dimensions = sizes
    generator, draws = torch.Generator().manual_seed(0), 4000
    a, b = (unit_rows(torch.randn(n, dimensions, generator=generator).double()) for n in (experts, others))
    drawn = turned(a @ a.mT, b @ b.mT, dimensions, draws, generator)
    q, r = torch.linalg.qr(torch.randn(draws, dimensions, dimensions, generator=generator).double())
    plain = a @ (q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None]) @ b.mT
    # A cosine of random directions has variance 1/d, its mean over 4,000 draws a standard error of 2 % of that.
    np.testing.assert_allclose(drawn.square().mean(0), 1 / dimensions, rtol=0.1)
    products = [each.flatten(1).mT @ each.flatten(1) / draws for each in (drawn, plain)]
    np.testing.assert_allclose(products[0], products[1], atol=0.02)
    assert drawn.abs().max() <= 1 + 1e-9


def test_rows_of_another_router_match_at_the_level_and_turned_ones_by_name_beyond_it():
    shape, generator = Shape(("0",), 5, 2, 12, 3), torch.Generator().manual_seed(0)

    def least(first, second):
        sides = [Inputs(shape, {}, {"router_weight": rows[None]}) for rows in (first, second)]
        table = likeness(*sides, "router row")
        assert table.unrelated is not None
        return float(beyond_unrelated(table.cosines, table.unrelated, False, generator)[1])

    rows = torch.randn(DRAWN, 2, 5, 12, generator=generator)
    assert sum(least(*pair) <= 0.05 for pair in rows) <= binom.ppf(0.999, DRAWN, 0.05)
    near = rows[0, 0] + 0.3 * rows[0, 1]
    assert least(rows[0, 0], near[[3, 0, 4, 1, 2]]) == 1 / (1 + unrelated.DRAWS)


def test_an_expert_without_evidence_counts_for_nothing():
    one, other = topical(0), topical(0)
    other[:, 2] = 0
    told, p = beyond_unrelated(
        correlations(one, other)[None], lambda draws, _: iter([torch.rand(draws, 6, 6) / 9]), False, torch.Generator()
    )
    assert told["mean likeness of the whole assignment"] == pytest.approx(1) and float(p) < 0.05


def test_a_mix_says_in_the_place_of_p_why_it_has_none(world):
    measure = get("expert_matching")
    result = evaluate(measure, world.inputs_for(measure), {"evidence": "mix"})
    assert result.null.p is None
    assert result.facts["permutation p"].startswith("none: kinds of evidence share hidden states")


def test_pairs_of_one_number_are_judged_as_such(world):
    measure, batch = get("expert_matching"), world.routes()
    turned_names = world.permute_experts(batch, torch.tensor([1, 2, 3, 4, 5, 0]))
    sides = [Inputs(b.shape, {"token_routes": world.state_of("token_routes", [b])}) for b in (batch, turned_names)]
    matched, same = (evaluate(measure, tuple(sides), {"show": show}) for show in ("matched", "same number"))
    assert matched.facts["permutation p"] == 1 / 200 and same.facts["permutation p"] > 0.5
