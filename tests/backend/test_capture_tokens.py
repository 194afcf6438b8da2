"""Every captured token says who it is: prompt, position, role, neighbours, class, and where it stands in the text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from analysis.errors import GeometryError, TooFew
from analysis.slots import BLOCKS, GENERATED, PROMPT, TOKEN_CLASSES, RouteBatch, text_digest
from backend.adapters import adapt
from backend.capture import CaptureOptions, capture
from backend.capture.tokens import NOWHERE, encode, surface
from backend.prompts import Prompt
from tests.backend import tiny_moe

pytestmark = pytest.mark.slow

TEMPLATE = "<end>{% for m in messages %}[{{ m['role'] }}] {{ m['content'] | trim }}\n{% endfor %}[assistant] "


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_moe.build(tiny_moe.olmoe)


def captured(model: Any, prompts: list[Prompt], tokenizer: Any = None, **options: Any) -> list[RouteBatch]:
    found = capture(
        model,
        adapt(model),
        tokenizer or tiny_moe.tokenizer(),
        prompts,
        CaptureOptions(**options),
        frozenset({"routes"}),
    )
    routes = [each.route for each in found]
    assert all(routes)
    return [route for route in routes if route is not None]


def test_a_prompt_keeps_its_id_category_and_digest_in_whatever_batch_it_runs(model: Any) -> None:
    asked = tiny_moe.prompts("a longer text", "short", "the longest text of all")
    for budget in (1, 40, 4096):
        rows = {
            name: (digest, category)
            for batch in captured(model, asked, batch_tokens=budget)
            for name, digest, category in zip(
                batch.prompts.ids, batch.prompts.digests, batch.prompts.categories, strict=True
            )
        }
        assert rows == {p.id: (text_digest(p.text), p.category) for p in asked}
    assert len(captured(model, asked, batch_tokens=1)) == 3 and BLOCKS == 8


def test_positions_count_the_prompts_own_tokens_whichever_side_is_padded(model: Any) -> None:
    asked = tiny_moe.prompts("abc", "abcdefgh")
    left, right = (captured(model, asked, tiny_moe.tokenizer(padding_side=side))[0] for side in ("left", "right"))
    assert left.keys.position.tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 5, 6, 7]
    assert left.keys.prompt.tolist() == [0] * 3 + [1] * 8
    assert torch.equal(left.keys.position, right.keys.position) and torch.equal(left.indices, right.indices)


def test_next_and_predicted_are_the_texts_and_the_models(model: Any) -> None:
    (batch,) = captured(model, tiny_moe.prompts("hello", "bye"))
    for row in range(2):
        mine = batch.keys.prompt == row
        token, following = batch.keys.token[mine], batch.keys.next[mine]
        assert following.tolist() == [*token.tolist()[1:], -1]
        with torch.no_grad():
            own = model(token[None], use_cache=False).logits[0].argmax(-1)
        assert torch.equal(batch.keys.predicted[mine], own)


def test_spans_slice_the_prompt_back_to_each_token(root: Path) -> None:
    text = "  def f(x):\n\treturn x ** 2  # größer, 12.5 %\n\n“Ah!” she said."
    for tokenizer in (tiny_moe.tokenizer(), AutoTokenizer.from_pretrained(root / "data/tokenizer")):
        found = encode(tokenizer, Prompt("p", text, "c"), chat_template=False, max_tokens=999)
        assert found.given == len(found.ids) > 10
        placed = 0
        for token, (start, end) in zip(found.ids, found.spans, strict=True):
            decoded = tokenizer.decode([token])
            if (start, end) != NOWHERE and "\ufffd" not in decoded:
                assert text[start:end] == decoded
                placed += 1
        assert placed > 10


def test_with_a_chat_template_spans_are_still_of_the_prompts_own_text() -> None:
    tokenizer = tiny_moe.tokenizer()
    tokenizer.chat_template = TEMPLATE
    text = "  user says what is a user?\n"
    found = encode(tokenizer, Prompt("p", text, "c"), chat_template=True, max_tokens=999)
    assert found.ids[0] == tiny_moe.END and tokenizer.decode(found.ids).endswith("[assistant] ")
    placed = [span for span in found.spans if span != NOWHERE]
    assert "".join(text[a:b] for a, b in placed) == text.strip()
    assert found.spans[0] == NOWHERE and found.spans[-1] == NOWHERE


def test_a_template_that_rewrites_the_prompt_leaves_spans_unknown() -> None:
    tokenizer = tiny_moe.tokenizer()
    tokenizer.chat_template = "{{ messages[0]['content'] | upper }}"
    found = encode(tokenizer, Prompt("p", "words", "c"), chat_template=True, max_tokens=999)
    assert set(found.spans) == {NOWHERE}


def test_a_chat_template_that_is_not_there_is_a_clear_error(model: Any) -> None:
    with pytest.raises(GeometryError, match="no chat template"):
        captured(model, tiny_moe.prompts("words"), chat_template=True)


def test_a_cut_prompt_is_counted_and_named(model: Any) -> None:
    asked = tiny_moe.prompts("0123456789", "01", "0123456")
    (batch,) = capture(
        model, adapt(model), tiny_moe.tokenizer(), asked, CaptureOptions(max_tokens=4), frozenset({"routes"})
    )
    assert batch.notes == ("2 of 3 prompts cut at 4 tokens: a (6 left out), c (3 left out)",)
    assert batch.route is not None and len(batch.route.keys) == 10


def test_a_first_token_left_out_is_seen_by_the_model_and_counted_nowhere(model: Any) -> None:
    asked, needs = tiny_moe.prompts("abc", "x", "abcdefgh"), ("routes", "layers", "backward")
    ((whole,), (part,)) = (
        tiny_moe.run(model, adapt(model), asked, needs, first_token=counts) for counts in (True, False)
    )
    assert whole.route is not None and part.route is not None
    order = [whole.route.prompts.ids.index(name) for name in part.route.prompts.ids]
    keys, kept = part.route.keys, []
    for row in order:
        kept += ((whole.route.keys.prompt == row) & (whole.route.keys.position > 0)).nonzero().flatten().tolist()
    assert keys.position.tolist() == [1, 2, 1, 2, 3, 4, 5, 6, 7]
    assert torch.equal(keys.token, whole.route.keys.token[kept]) and torch.equal(keys.next, whole.route.keys.next[kept])
    assert torch.equal(keys.predicted, whole.route.keys.predicted[kept])
    assert torch.equal(part.route.indices, whole.route.indices[:, kept])
    for name in ("router_input", "logits", "task_gradient"):
        for mine, all_of_them in zip(part.layers, whole.layers, strict=True):
            torch.testing.assert_close(getattr(mine, name), getattr(all_of_them, name)[kept])
    assert part.notes == ("1 of 3 prompts have no token beside the first and count for nothing: b",)
    assert set(part.route.prompts.ids) == {"a", "b", "c"}
    with pytest.raises(TooFew, match="none of the 1 prompts has a token beside its first"):
        captured(model, tiny_moe.prompts("x"), first_token=False)
    (grown,) = captured(model, tiny_moe.prompts("x"), first_token=False, generate=2)
    assert grown.keys.position.tolist()[0] == 1 and (grown.keys.role == GENERATED).all()


def test_the_models_positions_bound_a_prompt_too(model: Any) -> None:
    (batch,) = captured(model, tiny_moe.prompts("x" * 600), generate=2)
    assert int((batch.keys.role == PROMPT).sum()) == 510
    with pytest.raises(GeometryError, match="no room for a prompt in 512 positions"):
        captured(model, tiny_moe.prompts("x"), generate=512)


def test_an_empty_prompt_owns_no_token_and_is_named(model: Any) -> None:
    found = list(
        capture(
            model,
            adapt(model),
            tiny_moe.tokenizer(),
            tiny_moe.prompts("", "words"),
            CaptureOptions(),
            frozenset({"routes"}),
        )
    )
    assert len(found) == 1 and found[0].route is not None
    assert found[0].notes == ("1 of 2 prompts have no token and count for nothing: a",)
    assert found[0].route.prompts.ids == ("b", "a") and set(found[0].route.keys.prompt.tolist()) == {0}
    with pytest.raises(TooFew, match="none of the 1 prompts has a token"):
        captured(model, tiny_moe.prompts(""))


def test_generated_tokens_are_greedy_and_say_that_they_are_generated(model: Any) -> None:
    asked = tiny_moe.prompts("count: one two", "a b")
    (batch,) = captured(model, asked, generate=6)
    for row, name in enumerate(batch.prompts.ids):
        mine = batch.keys.prompt == row
        given = len(next(p.text for p in asked if p.id == name))
        role, token = batch.keys.role[mine], batch.keys.token[mine]
        assert role.tolist() == [PROMPT] * given + [GENERATED] * (len(role) - given)
        assert 1 <= len(role) - given <= 6
        assert torch.equal(batch.keys.predicted[mine][given - 1 : -1], token[given:])
        assert {tuple(span) for span in batch.keys.span[mine][given:].tolist()} == {NOWHERE}


def test_routes_while_decoding_equal_those_of_the_one_pass_over_the_whole_text(model: Any) -> None:
    (batch,) = captured(model, tiny_moe.prompts("count: one two"), generate=6)
    seen: list[torch.Tensor] = []
    experts = adapt(model).layers[-1].experts
    handle = experts.register_forward_pre_hook(lambda module, args: seen.append(args[1].clone()))
    ids = batch.keys.token[batch.keys.role == PROMPT][None]
    try:
        model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False, pad_token_id=tiny_moe.END
        )
    finally:
        handle.remove()
    decoded, whole = torch.cat(seen), batch.indices[-1]
    clear = batch.margins[-1][: len(decoded)] > 1e-5  # a tie may fall either way when sums are taken in another order
    assert clear.sum() > 15
    assert torch.equal(decoded[clear], whole[: len(decoded)][clear])


def test_surface_classes_are_the_tokens_own() -> None:
    cases = {
        "12": "digit",
        " 7": "digit",
        ",": "punctuation",
        " +=": "punctuation",
        "\n": "newline",
        " \n\n": "newline",
    }
    assert {text: surface(text) for text in cases} == cases
    assert surface("cat") == surface(" ") == surface("\ufffd") == surface("x1") == "other"


def test_the_first_token_is_first_and_the_end_token_special(model: Any) -> None:
    (batch,) = captured(model, [Prompt("p", "1,\n2<end>", "c")])
    own, following, predicted = batch.keys.token_class.T.tolist()
    assert [TOKEN_CLASSES[code] for code in own] == ["first", "punctuation", "newline", "digit", "special"]
    assert [TOKEN_CLASSES[code] for code in following[:-1]] == ["punctuation", "newline", "digit", "special"]
    assert following[-1] == -1, "nothing follows the last"
    tokenizer = tiny_moe.tokenizer()
    special, ids = tokenizer.all_special_ids, batch.keys.predicted.tolist()
    wanted = ["special" if one in special else surface(tokenizer.decode([one])) for one in ids]
    assert [TOKEN_CLASSES[code] for code in predicted] == wanted and -1 not in predicted


def test_numbers_that_no_pass_can_have_are_refused() -> None:
    for wrong in ({"generate": -1}, {"max_tokens": 0}, {"batch_tokens": 0}):
        with pytest.raises(GeometryError, match="or more"):
            CaptureOptions(**wrong)
