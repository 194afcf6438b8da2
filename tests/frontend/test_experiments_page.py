"""The page of the papers' experiments."""

from __future__ import annotations

from frontend.pages.experiments import counted, noted


def test_an_experiments_rows_are_counted_by_what_they_say():
    rows = [{"verdict": verdict} for verdict in ("shows", "not run", "measured", "shows")]
    assert counted(rows) == "Of 4 rows: 2 shows, 1 measured, 1 not run."


def test_a_row_that_another_command_made_names_it():
    assert noted({"note": "5 seeds"}) == "5 seeds"
    assert (
        noted({"note": "5 seeds", "made": "2026-11-30", "command": "c --keep"})
        == "5 seeds; made 2026-11-30 by: c --keep"
    )
