"""The rules a row must keep to become a prompt, each refusal naming what would be right."""

from __future__ import annotations

from typing import Any

from backend.prompts.records import Fields
from backend.prompts.report import Problem, Report
from backend.prompts.sets import Prompt

MOST_CHARACTERS = 32_000
MOST_LABEL_CHARACTERS = 200
UNCATEGORISED = "uncategorised"


class Checker:
    """Takes records in order and files them in a report; remembers ids so that each stays unique."""

    def __init__(self, report: Report):
        self._report = report
        self._ids: set[str] = set()

    def take(self, row: int, record: Fields | Problem) -> None:
        """File one record as good, mended or refused."""
        if isinstance(record, Problem):
            self._refuse(row, record, {})
            return
        problem = _text_problem(row, record.get("text")) or self._label_problem(row, record)
        if problem:
            self._refuse(row, problem, record)
            return
        mends: list[Problem] = []
        prompt = Prompt(self._id(row, record, mends), record["text"], _category(row, record, mends))
        for mend in mends:
            self._report.note(mend)
        self._ids.add(prompt.id)
        self._report.prompts.append(prompt)
        self._report.count(row, "mended" if mends else "good", (prompt.id, prompt.text, prompt.category))

    def _refuse(self, row: int, problem: Problem, record: Fields) -> None:
        self._report.note(problem)
        shown = tuple(_shown(record.get(name)) for name in ("id", "text", "category"))
        self._report.count(row, "refused", (shown[0], shown[1], shown[2]))

    def _label_problem(self, row: int, record: Fields) -> Problem | None:
        for name in ("id", "category"):
            value = record.get(name)
            if not (value is None or (isinstance(value, str | int) and not isinstance(value, bool))):
                return Problem(row, name, "refused", f"`{name}` is {_kind(value)}; it must be a string.")
            text = str(value if value is not None else "")
            if len(text) > MOST_LABEL_CHARACTERS:
                message = f"`{name}` has {len(text):,} characters; at most {MOST_LABEL_CHARACTERS} are allowed."
                return Problem(row, name, "refused", message)
            if bad := _bad_character(text):
                return Problem(row, name, "refused", f"`{name}` holds {bad}; take it out.")
        return None

    def _id(self, row: int, record: Fields, mends: list[Problem]) -> str:
        given = record.get("id")
        wanted = str(given).strip() if given is not None else ""
        if not wanted:
            wanted = f"row-{row}"
            if "id" in record:
                mends.append(Problem(row, "id", "mended", f"The id is blank; the row is named {wanted}."))
        elif not isinstance(given, str):
            mends.append(Problem(row, "id", "mended", f"The id is the number {wanted}; it is read as text."))
        free, number = wanted, 2
        while free in self._ids:
            free, number = f"{wanted}-{number}", number + 1
        if free != wanted:
            mends.append(
                Problem(
                    row, "id", "mended", f"The id {wanted!r} is used by an earlier row; this one is named {free!r}."
                )
            )
        return free


def _category(row: int, record: Fields, mends: list[Problem]) -> str:
    given = record.get("category")
    category = str(given).strip() if given is not None else ""
    if category:
        if not isinstance(given, str):
            mends.append(
                Problem(row, "category", "mended", f"The category is the number {category}; it is read as text.")
            )
        return category
    if "category" in record:
        mends.append(Problem(row, "category", "mended", f"The category is blank; the row counts as {UNCATEGORISED!r}."))
    return UNCATEGORISED


def _text_problem(row: int, text: Any) -> Problem | None:
    if text is None:
        return Problem(row, "text", "refused", "`text` is missing; every row needs one.")
    if not isinstance(text, str):
        return Problem(row, "text", "refused", f"`text` is {_kind(text)}; it must be a string.")
    if not text.strip():
        return Problem(row, "text", "refused", "`text` is blank; write the prompt, or take the row out.")
    if len(text) > MOST_CHARACTERS:
        message = (
            f"`text` has {len(text):,} characters; at most {MOST_CHARACTERS:,} are allowed. Shorten it or split it."
        )
        return Problem(row, "text", "refused", message)
    if bad := _bad_character(text):
        return Problem(row, "text", "refused", f"`text` holds {bad}; take it out.")
    return None


def _bad_character(text: str) -> str | None:
    if (at := text.find("\0")) >= 0:
        return f"a NUL character (position {at + 1:,})"
    if not text.isascii():
        # JSON can spell half of a surrogate pair, which no encoding can write.
        at = next((i for i, c in enumerate(text) if "\ud800" <= c <= "\udfff"), -1)
        if at >= 0:
            return f"half a surrogate pair (position {at + 1:,})"
    return None


def _kind(value: Any) -> str:
    kinds = {
        bool: "a truth value",
        int: "a number",
        float: "a number",
        list: "a list",
        dict: "an object",
        type(None): "null",
    }
    return kinds.get(type(value), "no text")


def _shown(value: Any) -> str:
    return (
        ""
        if value is None
        else str(value).encode("utf-8", "replace").decode("utf-8").replace("\0", "\N{SYMBOL FOR NULL}")
    )
