"""The page "what if": the form says what the API takes, and a result is told with its interval, chance and text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from plotly.utils import PlotlyJSONEncoder

from frontend.pages import pruneplan, whatif

GIVEN = {"layer": " 2", "expert": "5", "second": "6", "k": "3"}
TOLD: dict[str, Any] = {
    "checkpoint": "aux",
    "prompt_set": "four-tasks",
    "random_weights": False,
    "seconds": 1.5,
    "told": "expert 5 of layer 2 off",
    "tokens": 100,
    "perplexity": [
        {
            "category": "all",
            "prompts": 8,
            "tokens": 92,
            "before": 42.4,
            "after": 44.01,
            "change": {"value": 0.0373, "low": 0.02, "high": 0.054, "reason": ""},
            "random": [0.01, 0.05],
        },
        {
            "category": "code",
            "prompts": 2,
            "tokens": 20,
            "before": 10.0,
            "after": None,
            "change": {"value": 0.5, "low": None, "high": None, "reason": "the prompts fall into 2 block(s)"},
            "random": [],
        },
    ],
    "routing": [{"layer": "2", "changed": 0.125, "random": [0.1, None]}, {"layer": "3", "changed": None, "random": []}],
    "tokens_changed": {
        "count": 3,
        "of": 100,
        "shown": [
            {
                "prompt": "p1",
                "piece": "<img src=x>",
                "following": None,
                "before": "a",
                "after": "b",
                "loss_change": None,
            }
        ],
    },
    "random": {"edits": ["expert 1 of layer 2 off"], "reason": ""},
    "saved": None,
    "notes": ["1 of 8 prompts cut"],
}


@pytest.mark.parametrize(
    ("kind", "wanted"),
    (
        ("off", {"kind": "off", "layer": "2", "expert": 5}),
        ("merge", {"kind": "merge", "layer": "2", "first": 5, "second": 6}),
        ("routers", {"kind": "routers", "checkpoint": "free"}),
        ("topk", {"kind": "topk", "k": 3}),
    ),
)
def test_the_form_says_what_the_api_takes(kind: str, wanted: dict) -> None:
    assert whatif.spec(kind, GIVEN, "free") == wanted
    assert whatif.spec("off", GIVEN | {"expert": "five"}, None)["expert"] == "five"  # the backend says what is right


PLANNED: dict[str, Any] = {
    "checkpoint": "aux",
    "fingerprint": "f",
    "prompt_set": "four-tasks",
    "prompts_digest": "d",
    "ratio": 0.5,
    "kept": 1,
    "experts": 2,
    "tokens": 100,
    "seconds": 2.0,
    "random": 2,
    "random_agreement": 0.5,
    "notes": [],
    "agreement": [[1, 0.25], [0.25, 1]],
    "criteria": [
        {
            "criterion": name,
            "halves": 0.75,
            "layers": {"0": {"keep": [n], "drop": [1 - n]}},
            "perplexity": [
                {"category": "all", "before": 10.0, "after": after, "change": {"value": after}, "random": [0.0, 0.2]}
            ],
        }
        for n, (name, after) in enumerate((("reap", 12.5), ("max_activation", 11.5)))
    ],
}


def test_a_plan_names_the_cheapest_list_and_hands_each_over() -> None:
    shown = json.dumps(pruneplan.result(PLANNED), cls=PlotlyJSONEncoder)
    for part in (
        "Least cost on these prompts: max activation",
        "12.50",
        "11.05",
        "random, mean of 2",
        "keep-reap.json",
    ):
        assert part in shown, part
    written = json.loads(pruneplan.keep_list(PLANNED, PLANNED["criteria"][1]))
    assert written["criterion"] == "max_activation" and written["layers"] == {"0": {"keep": [1], "drop": [0]}}


def test_a_result_is_told_with_interval_chance_and_reasons() -> None:
    shown = json.dumps(whatif.result(TOLD), cls=PlotlyJSONEncoder)
    for part in (
        "perplexity 42.40 becomes 44.01. 1 of 2 random edits cost less",
        "+0.0200 to +0.0540",
        "none: the prompts fall into 2 block(s)",
        "no data",
        "expert 1 of layer 2 off",
        "After 3 of 100 tokens",
        "1 of 8 prompts cut",
        "<img src=x>",
    ):
        assert part in shown, part
    assert "dangerously" not in shown
