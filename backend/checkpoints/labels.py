"""What the name of a step says: which optimiser step, how many tokens, which stage of training.

Names are those that series of checkpoints carry on the hub and on disk. They are read, never computed: published names
round their tokens, and a constant batch does not give them back.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from backend.errors import Refusal

EXAMPLES = "step1000-tokens4B, stage1-step1000-tokens4B, iter_0001000, global_step100, checkpoint-500, step-00020"

_STAGE = r"(?:(?P<stage>stage\d+(?:-ingredient\d+)?)-)?"
_TOKENS = r"tokens(?P<tokens>\d+(?:\.\d+)?)(?P<unit>[BT])"
_FORMS = {
    "step": re.compile(rf"{_STAGE}step-?(?P<step>\d+)(?:-{_TOKENS})?"),
    "iter": re.compile(r"iter_(?P<step>\d+)"),
    "global_step": re.compile(r"global_step_?(?P<step>\d+)"),
    "checkpoint": re.compile(r"checkpoint-(?P<step>\d+)"),
}
_REPOSITORY = re.compile(r"(?P<stem>.+)-(?P<tokens>\d+(?:\.\d+)?)(?P<unit>[BT])")
_UNITS = {"B": 10**9, "T": 10**12}


@dataclass(frozen=True)
class Label:
    """A step's name as read; `form` says in which way it was written."""

    text: str
    form: str
    step: int | None = None
    tokens: int | None = None
    stage: str | None = None

    @property
    def place(self) -> tuple[tuple[int, ...], int, int]:
        """Where it stands in its run: by stage, since steps begin anew with each, then by step, then by tokens."""
        return place(self.stage, self.step, self.tokens)


def place(stage: str | None, step: int | None, tokens: int | None) -> tuple[tuple[int, ...], int, int]:
    """The order of a run's steps."""
    numbers = tuple(int(n) for n in re.findall(r"\d+", stage or ""))
    return numbers, -1 if step is None else step, -1 if tokens is None else tokens


def read(text: str) -> Label | None:
    """The name of a folder or revision, or None if it names no step."""
    for form, pattern in _FORMS.items():
        if found := pattern.fullmatch(text):
            parts = found.groupdict()
            tokens = _count(parts["tokens"], parts["unit"]) if parts.get("tokens") else None
            return Label(text, form, int(parts["step"]), tokens, parts.get("stage"))
    return None


def ordered(texts: Sequence[str]) -> list[Label]:
    """The names of one run in the order of training; raises `Refusal` for one that says no step, and for mixed ones."""
    found = [read(text) for text in texts]
    if nameless := [text for text, label in zip(texts, found, strict=True) if label is None]:
        raise Refusal(f"{nameless[0]!r} names no step of a run; the names of steps look like {EXAMPLES}.")
    return _in_order([label for label in found if label is not None])


def ordered_repositories(names: Sequence[str]) -> list[Label]:
    """Repositories that differ in their tokens alone (`owner/moe-5T`, `owner/moe-10T`), in the order of training."""
    found = [_REPOSITORY.fullmatch(name) for name in names]
    if nameless := [name for name, match in zip(names, found, strict=True) if match is None]:
        raise Refusal(
            f"{nameless[0]} names no revision, and its name ends in no number of tokens (-5T, -200B); write it as "
            f"{nameless[0]}@REVISION, where a revision looks like {EXAMPLES}."
        )
    matches = [match for match in found if match is not None]
    if len(stems := sorted({match["stem"] for match in matches})) > 1:
        raise Refusal(f"{stems[0]} and {stems[1]} are two models; a run is one.")
    counts = [_count(match["tokens"], match["unit"]) for match in matches]
    return _in_order([Label(name, "repository", None, n) for name, n in zip(names, counts, strict=True)])


def _in_order(labels: list[Label]) -> list[Label]:
    forms = {label.form: label.text for label in labels}
    if len(forms) > 1:
        one, other, *_ = forms.values()
        raise Refusal(f"{one!r} and {other!r} count in two ways, which have no common order; a run has one.")
    _check_stages(labels)
    out = sorted(labels, key=lambda label: label.place)
    for before, after in pairwise(out):
        if before.place == after.place:
            raise Refusal(f"{before.text!r} and {after.text!r} are the same step; name each step once.")
    return out


def _check_stages(labels: list[Label]) -> None:
    without = [label.text for label in labels if label.stage is None]
    staged = [label for label in labels if label.stage is not None]
    if without and staged:
        raise Refusal(f"{without[0]!r} names no stage and {staged[0].text!r} does; steps begin anew with each stage.")
    branches: dict[str, str] = {}
    for label in staged:
        stage = str(label.stage)
        first = branches.setdefault(stage.split("-")[0], stage)
        if first != stage:
            raise Refusal(f"{first} and {stage} were trained beside each other, not one after the other; take one.")


def _count(number: str, unit: str) -> int:
    return round(float(number) * _UNITS[unit])
