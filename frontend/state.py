"""The state of a page, which is its URL: checkpoints A to D, prompts, layer, and knobs by measure."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode

from frontend.client import Client

SHARED = ("a", "b", "c", "d", "prompts", "layer")
COMPARED = ("a", "b", "c", "d")
"""The letters of the checkpoints that may stand beside each other; the first is the baseline."""
COMPARES = "/compare"
"""The one page where C and D stand: everywhere else they wait in the URL."""


@dataclass(frozen=True)
class Material:
    """What the backend holds: checkpoints, prompt sets, catalogue."""

    checkpoints: tuple[Mapping[str, Any], ...]
    prompts: tuple[Mapping[str, Any], ...]
    measures: tuple[Mapping[str, Any], ...]

    def checkpoint(self, name: str | None) -> Mapping[str, Any] | None:
        """The checkpoint of this id, if the backend knows it."""
        return next((c for c in self.checkpoints if c["id"] == name), None)

    def measure(self, name: str) -> Mapping[str, Any] | None:
        """The catalogue entry of this name, if there is one."""
        return next((m for m in self.measures if m["name"] == name), None)

    def prompt_set(self, name: str | None) -> Mapping[str, Any] | None:
        """The prompt set of this name, if the backend knows it."""
        return next((p for p in self.prompts if p["name"] == name), None)

    def start_of(self, checkpoint: str) -> Mapping[str, Any] | None:
        """Step 0 of the checkpoint's own run: the control that every trained figure stands beside."""
        own = self.checkpoint(checkpoint)
        if own is None or not own.get("run") or not own.get("step"):
            return None
        return next((c for c in self.checkpoints if c.get("run") == own["run"] and c.get("step") == 0), None)

    def steps_of(self, checkpoint: str | None) -> list[Mapping[str, Any]]:
        """All steps of the checkpoint's own run in the order of training; itself alone where it belongs to none."""
        own = self.checkpoint(checkpoint)
        if own is None:
            return []
        if not own.get("run"):
            return [own]
        return sorted((c for c in self.checkpoints if c.get("run") == own["run"]), key=place)

    def last_of_runs(self) -> list[Mapping[str, Any]]:
        """The last checkpoint of every run, in the order of the list; one that belongs to no run counts as its own."""
        last: dict[str, Mapping[str, Any]] = {}
        for c in self.checkpoints:
            run = c.get("run") or c["id"]
            if run not in last or place(c) >= place(last[run]):
                last[run] = c
        return list(last.values())


def place(c: Mapping[str, Any]) -> tuple[list[int], int, int]:
    """Where a step stands in its run: by stage, since steps begin anew with each, then by step, then by tokens."""
    stage = [int(n) for n in re.findall(r"\d+", c.get("stage") or "")]
    return stage, c.get("step") or 0, c.get("tokens") or 0


@dataclass(frozen=True)
class PageState:
    """Parsed query: `a` to `d` are checkpoint ids, `order` that of experts beside A, `knobs` text by "measure.knob".

    `beyond` dims what chance explains.
    """

    path: str
    a: str | None
    b: str | None
    prompts: str | None
    layer: int
    order: str = "number"
    knobs: Mapping[str, str] = field(default_factory=dict)
    chosen: frozenset[str] = frozenset()
    c: str | None = None
    d: str | None = None
    beyond: bool = False

    @property
    def compared(self) -> tuple[tuple[str, str | None], ...]:
        """Letter and id of each checkpoint that is compared, the baseline first: A, B and, where chosen, C and D."""
        more = (("c", self.c), ("d", self.d)) if self.path.rstrip("/") == COMPARES else ()
        return (("a", self.a), ("b", self.b), *((letter, name) for letter, name in more if name))

    def url(self, path: str | None = None, **change: Any) -> str:
        """A link to `path` with the shared part of this state; only what was chosen stands in it."""
        query = {k: getattr(self, k) for k in SHARED if k in self.chosen} | {
            k: v for k, v in change.items() if v is not None
        }
        return (path or self.path) + (f"?{urlencode(query, safe='/')}" if query else "")


async def material_of(client: Client) -> Material:
    """What the backend holds right now."""
    checkpoints, prompts, measures = await asyncio.gather(client.checkpoints(), client.prompt_sets(), client.measures())
    return Material(tuple(checkpoints), tuple(prompts), tuple(measures))


def parse(path: str | None, search: str | None, material: Material) -> PageState:
    """The state a URL means; what it leaves open is filled from what the backend holds."""
    query = dict(parse_qsl((search or "").lstrip("?"), keep_blank_values=True))
    a, b = _default_pair(material)
    layer = query.get("layer", "0")
    return PageState(
        path=path or "/",
        a=query.get("a", a),
        b=query.get("b", b if query.get("a", a) != b else a),
        prompts=query.get("prompts", _default_prompts(material)),
        layer=int(layer) if layer.isdigit() else 0,
        order=order_of(search),
        knobs={k[2:]: v for k, v in query.items() if k.startswith("k.")},
        chosen=frozenset(query) & frozenset(SHARED),
        c=query.get("c") or None,
        d=query.get("d") or None,
        beyond=query.get("beyond") == "only",
    )


def order_of(search: str | None) -> str:
    """The order of the experts beside A's that a URL asks for: `matched`, or by their own numbers."""
    query = dict(parse_qsl((search or "").lstrip("?")))
    return "matched" if query.get("order") == "matched" else "number"


def knob_values(measure: Mapping[str, Any], knobs: Mapping[str, str], fixed: Mapping[str, Any]) -> dict[str, Any]:
    """The knobs of one measure in their own types, where the URL or the page says something other than the default."""
    out = {}
    for knob in measure["knobs"]:
        text = knobs.get(f"{measure['name']}.{knob['name']}")
        if text is not None:
            out[knob["name"]] = _typed(knob, text)
    return out | dict(fixed)


def _typed(knob: Mapping[str, Any], text: str) -> Any:
    if knob["kind"] == "bool":
        return text == "true"
    if knob["kind"] == "choice":
        return next((c for c in knob["choices"] if str(c) == text), text)
    try:
        return int(text) if knob["kind"] == "int" else float(text)
    except ValueError:
        return text  # the backend refuses it in its own words


def _default_pair(material: Material) -> tuple[str | None, str | None]:
    ends = [c for c in material.last_of_runs() if not c.get("dense") and not c.get("error")]
    ends = [c for c in ends if not c.get("soft")] or ends
    if not ends:
        return None, None
    first = ends[0]
    other = next((c for c in ends[1:] if c.get("router") != first.get("router")), ends[1] if len(ends) > 1 else None)
    return first["id"], other["id"] if other else None


def _default_prompts(material: Material) -> str | None:
    by_categories: Sequence[Mapping[str, Any]] = sorted(
        material.prompts, key=lambda p: (p["prompts"] > 400, not p.get("shipped"), p["name"])
    )
    return by_categories[0]["name"] if by_categories else None
