"""A place on a page where one measure's panel stands, and the questions that fill it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from frontend import words
from frontend.client import Question, Refusal
from frontend.clock import clock_of
from frontend.order import SHOWN, reorders
from frontend.state import Material, PageState, knob_values

Sides = Literal["one", "pair", "both", "runs", "steps", "series"]


@dataclass(frozen=True)
class Place:
    """Where a panel stands and how it is asked.

    `sides`: one checkpoint beside its step 0; a pair, or all that are compared, on one scale; both in a two-sided
    measure, or each against A; all runs by their ends; all steps of one run in a measure of ordered checkpoints; a
    series of all its steps, a question each. `matching` names the two-sided measure that says which expert of the
    others is which of A, where a pair can be drawn in that order; `difference` the one that has the p of what a pair
    shows side by side.
    """

    measure: str
    sides: Sides = "one"
    span: int = 12
    knobs: Mapping[str, Any] = field(default_factory=dict)
    title: str | None = None
    prompts: str | None = None
    matching: str | None = None
    difference: str | None = None

    @property
    def key(self) -> str:
        """Unique on a page; also the key of its components."""
        return "-".join([self.measure, self.sides, *(str(v) for v in self.knobs.values())])

    def stored(self) -> dict[str, Any]:
        """As a page keeps it between callbacks."""
        return asdict(self)


@dataclass(frozen=True)
class Asked:
    """One question of a place: its role in the figure and the name it carries there; a matching's is whose it is."""

    role: str
    label: str
    question: Question

    @property
    def needed(self) -> bool:
        """A figure can be drawn without its control, never without its main answers."""
        return self.role != "control"


def questions(place: Place, state: PageState, material: Material) -> list[Asked]:
    """What to ask for a place in this state; raises `Refusal` where it cannot be asked."""
    measure = material.measure(place.measure)
    if measure is None:
        raise Refusal(404, "unknown measure", f"The backend knows no measure “{place.measure}”.")
    prompts = _prompts(place, measure, state, material)
    knobs = knob_values(measure, state.knobs, place.knobs)
    if place.sides == "runs":
        return _runs(place, state, material, prompts, knobs)
    if place.sides in ("steps", "series"):
        return _of_run(place, state, material, prompts, knobs)
    if place.sides == "both":
        return _against(place, state, material, prompts, knobs)
    compared = state.compared if place.sides == "pair" else state.compared[:1]
    own = {role: _checkpoint(name, role.upper(), material) for role, name in compared}
    knobs, how = _alike(measure, knobs, own.values())
    asked = [
        Asked(role, words.checkpoint(one) + how, Question(place.measure, (one["id"],), prompts, knobs))
        for role, one in own.items()
    ]
    if place.matching and state.order == "matched" and reorders(tuple(measure.get("axes") or ())):
        asked += _matching(place.matching, asked, state, material)
    start = material.start_of(asked[0].question.checkpoints[0]) if place.sides == "one" else None
    if start is not None:
        asked.append(Asked("control", "step 0", Question(place.measure, (start["id"],), prompts, knobs)))
    return asked


def _alike(
    measure: Mapping[str, Any], knobs: Mapping[str, Any], compared: Collection[Mapping[str, Any]]
) -> tuple[Mapping[str, Any], str]:
    """Beside a fully soft router, which selects nothing, signatures of all are of combine weights, and say so."""
    free = any(knob["name"] == "weighting" for knob in measure["knobs"]) and knobs.get("weighting", "auto") == "auto"
    if free and any(one.get("soft") for one in compared) and not all(one.get("soft") for one in compared):
        return {**knobs, "weighting": "weight"}, ", by combine weight"
    return knobs, ""


def _against(
    place: Place, state: PageState, material: Material, prompts: str | None, knobs: Mapping[str, Any]
) -> list[Asked]:
    """Each of the others against A, and so against the same; one alone belongs to both as much as to itself."""
    base, *others = [(letter, _checkpoint(name, letter.upper(), material)) for letter, name in state.compared]
    first, found = base[1], []
    for letter, other in others:
        question = Question(place.measure, (first["id"], other["id"]), prompts, knobs)
        if len(others) == 1:
            found.append(Asked("ab", f"{words.checkpoint(first)} and {words.checkpoint(other)}", question))
        else:
            found.append(Asked(letter, f"{words.checkpoint(other)} against A", question))
    return found


def _matching(name: str, asked: list[Asked], state: PageState, material: Material) -> list[Asked]:
    """Which expert of the others is which of A, over the prompts chosen above, whether the figure reads them or not."""
    measure = material.measure(name)
    if measure is None:
        raise Refusal(404, "unknown measure", f"The backend knows no measure “{name}”.")
    base, *others = ((each.role, each.question.checkpoints[0]) for each in asked)
    prompts, knobs = _prompts(Place(name), measure, state, material), knob_values(measure, state.knobs, SHOWN)
    return [Asked("matching", role, Question(name, (base[1], other), prompts, knobs)) for role, other in others]


def _runs(
    place: Place, state: PageState, material: Material, prompts: str | None, knobs: Mapping[str, Any]
) -> list[Asked]:
    asked, controls = [], []
    for last in material.last_of_runs():
        if last.get("dense") or last.get("soft") or last.get("error") or not last.get("run"):
            continue
        role = "a" if last["id"] == state.a else "b" if last["id"] == state.b else "context"
        name = words.checkpoint(last)
        asked.append(Asked(role, name, Question(place.measure, (last["id"],), prompts, knobs)))
        if (start := material.start_of(last["id"])) is not None:
            controls.append(Asked("control", name, Question(place.measure, (start["id"],), prompts, knobs)))
    if not asked:
        raise Refusal(
            404, "no run", "No run with a router is loaded. Register a checkpoint, or set MOE_GEOMETRY_ROOTS."
        )
    return asked + controls  # in this order: what was trained is drawn first


def _of_run(
    place: Place, state: PageState, material: Material, prompts: str | None, knobs: Mapping[str, Any]
) -> list[Asked]:
    own, members, clock = _checkpoint(state.a, "A", material), material.steps_of(state.a), clock_of(material, state)
    if clock is None:
        raise Refusal(404, "no steps", f"{own['id']} has no other steps loaded: there is no path to follow.")
    ids = tuple(c["id"] for c in members)
    if place.sides == "steps":
        return [Asked("a", f"{own['run']}, {len(ids)} steps", Question(place.measure, ids, prompts, knobs))]
    return [
        Asked("a", name, Question(place.measure, (one,), prompts, knobs))
        for one, name in zip(ids, clock.steps, strict=True)
    ]


def sides_of(measure: Mapping[str, Any]) -> Sides:
    """How a measure is asked where no page says otherwise: by what it takes."""
    taken = list(measure.get("sides") or ())
    return "steps" if taken == ["steps"] else "both" if taken else "one"


def _checkpoint(name: str | None, letter: str, material: Material) -> Mapping[str, Any]:
    found = material.checkpoint(name)
    if found is None:
        what = f"“{name}” is not loaded" if name else "none is chosen"
        raise Refusal(404, "no checkpoint", f"Checkpoint {letter}: {what}. Choose one in the bar above.")
    return found


def _prompts(place: Place, measure: Mapping[str, Any], state: PageState, material: Material) -> str | None:
    if not reads_prompts(measure):
        return None
    name = place.prompts if place.prompts and material.prompt_set(place.prompts) else state.prompts
    if material.prompt_set(name) is None:
        raise Refusal(404, "no prompts", f"Prompt set “{name}” is not loaded. Choose one in the bar above.")
    return name


def reads_prompts(measure: Mapping[str, Any]) -> bool:
    """Whether the measure reads anything beyond weights."""
    return not all(slot.endswith(("_weight", "_bias")) for slot in measure["reads"])
