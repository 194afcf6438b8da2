"""The page of the papers' experiments."""

from __future__ import annotations

from frontend.pages.experiments import counted


def test_an_experiments_rows_are_counted_by_what_they_say():
    rows = [{"verdict": "shows"}, {"verdict": "shows"}, {"verdict": "not run"}]
    assert counted(rows) == "Of 3 rows: 2 shows, 1 not run."
