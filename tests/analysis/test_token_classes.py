"""Surface classes of tokens: counted by hand, by own, next and predicted class; chance; and routes without text."""

import dataclasses

import numpy as np
import pytest
import torch

from analysis.inference import evaluate
from analysis.measure import Inputs, get
from analysis.result import Reason
from analysis.slots import TOKEN_CLASSES

MEASURE = get("token_class_specialisation")
DIGIT = TOKEN_CLASSES.index("digit")


def side(batch, world):
    return (Inputs(batch.shape, {"token_class_counts": world.state_of("token_class_counts", [batch])}),)


def of_classes(batch, classes):
    return dataclasses.replace(batch, keys=dataclasses.replace(batch.keys, token_class=torch.tensor(classes)))


@pytest.mark.parametrize(("which", "column"), [("input", 0), ("next", 1), ("predicted", 2)])
def test_shares_are_those_counted_by_hand(which, column, world):
    batch = world.routes(lengths=(5, 7, 4, 6))
    found = evaluate(MEASURE, side(batch, world), {"id_of": which})
    kinds, indices = batch.keys.token_class[:, column].tolist(), batch.indices.tolist()
    for code, name in enumerate(TOKEN_CLASSES):
        own = [token for token, kind in enumerate(kinds) if kind == code]
        assert found.facts[name].startswith(f"{len(own)} tokens")
        for layer, rows in enumerate(indices):
            counts = [sum(rows[token].count(expert) for token in own) for expert in range(6)]
            expected = [count / (2 * len(own)) if own else np.nan for count in counts]
            np.testing.assert_allclose(found.values[layer, :, code], expected)
    assert found.axes[2].labels == TOKEN_CLASSES and found.tokens == 22


def test_an_expert_of_digits_is_named_and_lies_outside_chance_and_others_do_not(world):
    batch = world.routes(lengths=(40,) * 16)
    digits = batch.keys.token_class[:, 0] == DIGIT
    indices = batch.indices.clone()
    indices[1, digits] = torch.tensor([4, 2])
    found = evaluate(MEASURE, side(dataclasses.replace(batch, indices=indices), world), {})
    count = int(digits.sum())
    assert found.facts["digit"] in {f"{count} tokens, most to E{e} of layer 2: 0.5" for e in (2, 4)}
    assert found.values[1, 4, DIGIT] == 0.5 > np.broadcast_to(found.null.high, found.values.shape)[1, 4, DIGIT]
    outside = (found.values > found.null.high) | (found.values < found.null.low)
    assert outside[1, :, DIGIT].all() and outside[[0, 2]].mean() < 0.1


def test_a_class_without_tokens_is_nan_and_says_so(world):
    batch = world.routes(lengths=(5, 7, 4, 6))
    found = evaluate(MEASURE, side(of_classes(batch, [[0, 0, 0]] * 22), world), {})
    assert np.isnan(found.values[..., 1:]).all() and np.isfinite(found.values[..., 0]).all()
    assert any(caveat.startswith("NaN: no token of this class") for caveat in found.caveats)


def test_routes_without_text_have_no_classes(world):
    batch = world.routes(lengths=(5, 7, 4, 6))
    found = evaluate(MEASURE, side(of_classes(batch, [[-1, -1, -1]] * 22), world), {})
    assert np.isnan(found.values).all() and isinstance(found.null, Reason)
    assert any("carry no text" in caveat for caveat in found.caveats) and "carry no text" in found.null.reason
