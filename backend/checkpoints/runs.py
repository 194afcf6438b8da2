"""A run as an ordered list: a folder of steps, folders side by side, or revisions of one repository of the hub.

Names are read and put in order before anything is looked at, headers are compared before any weight is fetched, and a
revision is pinned to the commit that it named at that moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from backend.checkpoints.digests import Digests
from backend.checkpoints.identity import Checkpoint
from backend.checkpoints.labels import EXAMPLES, Label, ordered, ordered_repositories, read
from backend.checkpoints.source import fetch, inspect, split
from backend.errors import Refusal
from backend.settings import Settings


@dataclass(frozen=True)
class Member:
    """One step of a run: where it lies, and what its name says."""

    source: str
    revision: str | None
    label: Label


def members(sources: Sequence[str], settings: Settings) -> tuple[str, list[Member]]:
    """The run's own name and its steps in the order of training; raises `Refusal`, and reads names alone."""
    wanted = [source.strip() for source in sources if source.strip()]
    if not wanted:
        raise Refusal("A run needs a folder of steps, or a list of revisions.")
    found = [split(source, settings) for source in wanted]
    folders = [folder for folder, _, _ in found if folder is not None]
    if 0 < len(folders) < len(found):
        raise Refusal(f"{wanted[0]} and the others lie partly on this machine and partly on the hub; a run is of one.")
    if folders:
        return _of_folders(folders)
    return _of_hub([(repository, revision) for _, repository, revision in found])


def fetch_run(sources: Sequence[str], settings: Settings, digests: Digests, name: str | None) -> list[Checkpoint]:
    """All steps of a run in order, weights of the hub left there; raises `Refusal` before any is kept."""
    own, steps = members(sources, settings)
    seen = [(step, inspect(step.source, settings, step.revision)) for step in steps]
    _check_alike(seen)
    run = name or own
    out = []
    for step, looked_at in seen:
        # By the commit that was looked at: a branch may move between the look and the download.
        found = fetch(step.source, settings, looked_at.revision, digests)
        label = step.label
        name_of_step = label.text.rsplit("/", 1)[-1]
        tokens = label.tokens if label.tokens is not None else found.tokens
        place = {"step": label.step, "stage": label.stage, "tokens": tokens}
        source = f"{step.source}@{step.revision}" if step.revision else found.source
        out.append(replace(found, id=f"{run}/{name_of_step}", run=run, source=source, **place))
    return out


def _of_folders(folders: list[Path]) -> tuple[str, list[Member]]:
    if len(folders) == 1:
        run = folders[0]
        steps = sorted(child for child in run.iterdir() if child.is_dir() and read(child.name))
        if len(steps) < 2:
            held = f"holds {len(steps)} folder(s) named like a step"
            raise Refusal(f"{run} {held}; a run needs two or more, called like {EXAMPLES}.")
    else:
        steps, run = folders, folders[0].resolve().parent
        if apart := [step for step in steps if step.resolve().parent != run]:
            raise Refusal(f"{apart[0]} does not lie beside {folders[0]}; the steps of a run lie in one folder.")
    by_name = {step.name: step for step in steps}
    return run.resolve().name, [Member(str(by_name[label.text]), None, label) for label in ordered([*by_name])]


def _of_hub(pairs: list[tuple[str, str | None]]) -> tuple[str, list[Member]]:
    if len(pairs) < 2:
        repository, revision = pairs[0]
        raise Refusal(
            f"{repository}{f'@{revision}' if revision else ''} is one checkpoint; a run is a list of two or more, "
            f"written as {repository}@REVISION, where a revision looks like {EXAMPLES}."
        )
    repositories = list(dict.fromkeys(repository for repository, _ in pairs))
    if not any(revision for _, revision in pairs):
        labels = ordered_repositories([repository for repository, _ in pairs])
        stem = labels[0].text.rsplit("/", 1)[-1].rsplit("-", 1)[0]
        return stem, [Member(label.text, None, label) for label in labels]
    if bare := [repository for repository, revision in pairs if not revision]:
        raise Refusal(f"{bare[0]} names no revision and others do; write {bare[0]}@REVISION.")
    if len(repositories) > 1:
        one, other, *_ = repositories
        raise Refusal(f"{one} and {other} are two repositories; the revisions of a run are of one.")
    labels = ordered([str(revision) for _, revision in pairs])
    return repositories[0].rsplit("/", 1)[-1], [Member(repositories[0], label.text, label) for label in labels]


def _check_alike(seen: list[tuple[Member, Checkpoint]]) -> None:
    first, start = seen[0]
    commits: dict[str, str] = {}
    for step, found in seen:
        if _shape(found) != _shape(start):
            raise Refusal(
                f"{first.label.text} has {_told(start)}, {step.label.text} has {_told(found)}; a run keeps its shape. "
                "Register them one by one to compare them."
            )
        if found.revision and commits.setdefault(found.revision, step.label.text) != step.label.text:
            raise Refusal(f"{commits[found.revision]!r} and {step.label.text!r} are the same commit, {found.revision}.")


def _shape(checkpoint: Checkpoint) -> tuple[object, ...]:
    return checkpoint.architecture, checkpoint.moe_layers, checkpoint.experts, checkpoint.top_k, checkpoint.model


def _told(c: Checkpoint) -> str:
    return f"{c.moe_layers} MoE layers of {c.experts} experts, top-{c.top_k}, width {c.model} ({c.architecture})"
