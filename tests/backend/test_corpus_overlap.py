"""Thirteen words in a row are an overlap, twelve are not, and the shipped sketch can miss none."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.lab import overlap, sketch

THIRTEEN = "one two three four five six seven eight nine ten eleven twelve thirteen"
TWELVE = THIRTEEN.removesuffix(" thirteen")
WORDS = st.lists(st.sampled_from([f"w{number}" for number in range(40)]), min_size=0, max_size=60)


def test_a_planted_run_of_thirteen_words_is_found_once() -> None:
    known = overlap.index([f"before {THIRTEEN} after"])
    assert overlap.shared(f"quite another text {THIRTEEN} and its end", known) == 1


def test_a_planted_run_of_twelve_words_is_not_found() -> None:
    known = overlap.index([f"before {TWELVE} after"])
    assert overlap.shared(f"quite another text {TWELVE} and its end", known) == 0


def test_layout_case_and_punctuation_do_not_hide_a_copy() -> None:
    known = overlap.index([THIRTEEN])
    assert overlap.shared(THIRTEEN.upper().replace(" ", ",\n  "), known) == 1


def test_the_order_of_words_matters() -> None:
    backwards = " ".join(reversed(THIRTEEN.split()))
    assert overlap.shared(backwards, overlap.index([THIRTEEN])) == 0


def test_runs_do_not_cross_from_one_document_to_the_next() -> None:
    first, second = "one two three four five six seven", "eight nine ten eleven twelve thirteen"
    assert overlap.shared(THIRTEEN, overlap.index([first, second])) == 0
    assert overlap.shared(THIRTEEN, overlap.index([f"{first} {second}"])) == 1


def test_a_text_shorter_than_a_run_has_none() -> None:
    assert len(overlap.runs(TWELVE)) == 0
    assert overlap.shared(TWELVE, overlap.index([THIRTEEN])) == 0
    assert overlap.shared(THIRTEEN, overlap.index([])) == 0


def test_token_ids_have_runs_like_words() -> None:
    ids = list(range(20))
    assert overlap.hits(overlap.runs_of(ids[3:16]), np.unique(overlap.runs_of(ids))) == 1
    assert overlap.hits(overlap.runs_of(ids[::-1]), np.unique(overlap.runs_of(ids))) == 0


@given(WORDS)
def test_a_text_shares_all_its_runs_with_itself(words: list[str]) -> None:
    text = " ".join(words)
    assert overlap.shared(text, overlap.index([text])) == max(0, len(words) - overlap.RUN + 1)


@given(before=WORDS, after=WORDS, run=st.lists(st.sampled_from("abcdefghijklm"), min_size=13, max_size=13))
def test_the_sketch_misses_no_copy_of_thirteen_words(before: list[str], after: list[str], run: list[str]) -> None:
    known = sketch.sketch([" ".join([*after, *run, *before])])
    assert sketch.may_repeat(" ".join([*before, *run, *after]), known)


def test_the_sketch_does_not_report_a_text_of_other_words() -> None:
    known = sketch.sketch([" ".join(f"a{number}" for number in range(500))])
    assert not sketch.may_repeat(" ".join(f"b{number}" for number in range(500)), known)


@pytest.mark.parametrize("texts", [[], ["too short"], [" ".join(f"w{number}" for number in range(300))]])
def test_a_sketch_survives_being_written_and_read(texts: list[str], tmp_path: Path) -> None:
    known = sketch.sketch(texts)
    sketch.save(known, tmp_path / "sketch.npz")
    assert np.array_equal(sketch.load(tmp_path / "sketch.npz"), known)
