"""The page of the papers' experiments."""

from __future__ import annotations

import json

from dash import html

from frontend.pages.experiments import _plate, counted, noted


def test_an_experiments_rows_are_counted_by_what_they_say():
    rows = [{"verdict": verdict} for verdict in ("shows", "not run", "measured", "shows")]
    assert counted(rows) == "Of 4 rows: 2 shows, 1 measured, 1 not run."


def test_a_row_that_another_command_made_names_it():
    assert noted({"note": "5 seeds"}) == "5 seeds"
    assert (
        noted({"note": "5 seeds", "made": "2026-11-30", "command": "c --keep"})
        == "5 seeds; made 2026-11-30 by: c --keep"
    )


def test_what_nobody_published_and_what_was_not_run_is_folded_away():
    numbers = {"published": None, "ours": 0.5, "low": None, "high": None, "note": ""}
    rows = [{"quantity": verdict, "verdict": verdict} | numbers for verdict in ("measured", "shows", "not run")]
    kept = {"title": "t", "source": "s", "made": "2026-11-30", "command": "c", "rows": rows}
    parts = list(_plate(kept)._traverse())
    assert [part.children for part in parts if getattr(part, "scope", "") == "row"] == ["shows"]
    [details] = [part for part in parts if isinstance(part, html.Details)]
    summary, frame = details.children
    assert summary.children == "2 more: measured and not run"
    [table] = json.loads(getattr(frame, "data-folded"))
    named = [
        row["props"]["children"][0]["props"]["children"] for row in table["props"]["children"][1]["props"]["children"]
    ]
    assert named == ["measured", "not run"]
