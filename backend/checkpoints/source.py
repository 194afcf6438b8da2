"""From a source (a local folder or a hub id) to a `Checkpoint`, by headers alone."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from backend.checkpoints import hub
from backend.checkpoints.digests import Digests, folder_stamp
from backend.checkpoints.facts import facts, read_config
from backend.checkpoints.headers import INDEX, SINGLE, read_headers, shard_map, weight_files
from backend.checkpoints.identity import Checkpoint
from backend.checkpoints.labels import Label, read
from backend.checkpoints.tokens import tokens_at
from backend.checkpoints.variants import fingerprint
from backend.errors import Conflict, Refusal, Unavailable
from backend.settings import Settings

HASHED_AT_ONCE = 256 << 20
"""Weights up to this many bytes are hashed when they are listed; larger ones when they are first asked about."""

TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
)

HUB_ID = r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}"
_PINNED = re.compile(rf"(?P<repository>{HUB_ID})@(?P<revision>[\w./-]{{1,200}})")


def inspect(source: str, settings: Settings, revision: str | None = None) -> Checkpoint:
    """What a source holds, without keeping or loading it; raises `Refusal` with the reason it cannot be used."""
    folder, name, revision = split(source, settings, revision)
    if folder is not None:
        return read_folder(folder, settings.checkpoint_roots, Digests())
    found, token = hub.listing(name, revision, settings.hub_token), settings.hub_token
    known = facts(hub.config(found, token), hub.headers(found, token), name)
    pinned = _pinned(name, revision)
    return Checkpoint(id=pinned, source=pinned, folder="", revision=found.commit, fetched=False, **known)


def fetch(source: str, settings: Settings, revision: str | None, digests: Digests) -> Checkpoint:
    """The same, its fingerprint known. Of the hub all but the weights is fetched: they wait for the first question."""
    folder, name, revision = split(source, settings, revision)
    if folder is not None:
        return read_folder(folder, settings.checkpoint_roots, digests, hash_all=True)
    try:
        found = _announced(name, revision, settings, digests)
    except Unavailable:
        folder = hub.cached(name, revision)
        if folder is None or lacking(folder):
            raise
        found = replace(read_folder(folder, None, digests, hash_all=True), revision=folder.name)
    pinned = _pinned(name, revision)
    return replace(found, id=pinned, source=pinned, run=None, step=None, stage=None, tokens=None)


def bring(checkpoint: Checkpoint, settings: Settings, digests: Digests, tell: hub.Tell) -> Checkpoint:
    """A checkpoint of the hub with its weights on this machine, every file the one whose digest the hub announced.

    Raises:
        Unavailable: The download broke off, or what came is not what was announced.
        Conflict: The files on this machine are another checkpoint's.
    """
    name, commit, folder = checkpoint.source.partition("@")[0], checkpoint.revision or "", Path(checkpoint.folder)
    if not (folder / "config.json").is_file():  # the cache was emptied since
        folder = hub.fetch_small(hub.listing(name, commit, settings.hub_token), settings.hub_token)
    hub.fetch_weights(name, commit, lacking(folder), settings.hub_token, tell)
    for path in weight_files(folder):
        _check_announced(path, name, digests)
    now = read_folder(folder, None, digests, hash_all=True)
    own = now.fingerprint
    if checkpoint.variant:
        own = fingerprint(own, checkpoint.precision, checkpoint.attention)
    if own != checkpoint.fingerprint:
        raise Conflict(f"The files of {checkpoint.id} in {folder} are not those that were registered; add it again.")
    return replace(checkpoint, folder=now.folder, stamp=now.stamp, fetched=True)


def lacking(folder: Path) -> list[str]:
    """Weight files that a snapshot of the hub's cache does not hold yet."""
    index = folder / INDEX
    names: Sequence[str] = sorted(set(shard_map(index).values())) if index.is_file() else [SINGLE]
    return [name for name in names if not (folder / name).is_file()]


def split(source: str, settings: Settings, revision: str | None = None) -> tuple[Path | None, str, str | None]:
    """The folder that a source means, or the repository and revision, which may stand behind an @."""
    if pinned := _PINNED.fullmatch(source):
        if revision and revision != pinned["revision"]:
            raise Refusal(f"{source} and the revision {revision} name two revisions; give one.")
        return None, pinned["repository"], pinned["revision"]
    return local_folder(source, settings), source, revision


def _announced(name: str, revision: str | None, settings: Settings, digests: Digests) -> Checkpoint:
    """A checkpoint by the headers and digests that the hub announces of its weights."""
    token = settings.hub_token
    found = hub.listing(name, revision, token)
    raw, names = hub.config(found, token), hub.weight_names(found, token)
    known = facts(raw, hub.headers(found, token), name)
    folder = hub.fetch_small(found, token)
    weights = [found.files[file].sha256 for file in names]
    if None in weights:  # a small file that the hub keeps without its digest: it has to be here to be hashed
        hub.fetch_weights(name, found.commit, lacking(folder), token, lambda file, here, whole: None)
    if not lacking(folder):
        return replace(read_folder(folder, None, digests, hash_all=True), revision=found.commit)
    mark = _mark(raw, [*weights, *(digests.of(path) for path in _tokenizer(folder))])
    known |= {"revision": found.commit, "fingerprint": mark, "fetched": False}
    return Checkpoint(name, name, str(folder.resolve()), **known)


def _check_announced(path: Path, name: str, digests: Digests) -> None:
    """The hub's cache calls a large file by the SHA-256 that was announced; what is not that file is thrown away."""
    if not path.is_symlink():  # a cache without links does not say it; the fingerprint still does
        return
    blob, content = path.parent / path.readlink(), path.resolve()  # a blob may lie in a store that caches share
    if re.fullmatch(r"[0-9a-f]{64}", blob.name) and digests.of(path) != blob.name:
        for each in (content, blob, path):
            each.unlink(missing_ok=True)
        raise Unavailable(
            f"What came as {path.name} of {name} is not the file that the hub announced (SHA-256 {blob.name[:12]}...); "
            "it was thrown away. Ask again."
        )


def _pinned(name: str, revision: str | None) -> str:
    return f"{name}@{revision}" if revision else name


def local_folder(source: str, settings: Settings) -> Path | None:
    """The folder a source means, or None if it can only be a hub id; raises `Refusal` for anything else."""
    path = Path(source).expanduser()
    if "\0" in source or not source.strip():
        raise Refusal("The source is empty; give a folder or a hub id such as allenai/OLMoE-1B-7B-0924.")
    candidates = [path] if path.is_absolute() else [path, *(root / path for root in settings.checkpoint_roots)]
    inside = [c for c in candidates if within(c, settings.checkpoint_roots)]
    for candidate in inside:
        if candidate.is_dir():
            return candidate
        if candidate.is_file():
            raise Refusal(
                f"{source} is a file; a checkpoint is the folder that holds config.json and model.safetensors."
            )
    if re.fullmatch(HUB_ID, source) and ".." not in source:
        return None
    roots = ", ".join(str(root) for root in settings.checkpoint_roots)
    if not inside:
        raise Refusal(
            f"{source} lies outside the folders that checkpoints are read from ({roots}); name its parent in "
            f"MOE_GEOMETRY_ROOTS (several are separated by {os.pathsep!r})."
        )
    raise Refusal(f"There is no folder {source}; checkpoints are read from {roots}.")


def within(path: Path, roots: tuple[Path, ...]) -> bool:
    """Whether a path, its links followed, lies in one of the roots."""
    real = path.resolve()
    return any(real.is_relative_to(root.resolve()) for root in roots)


def read_folder(folder: Path, roots: tuple[Path, ...] | None, digests: Digests, hash_all: bool = False) -> Checkpoint:
    """A local folder's checkpoint, named RUN/STEP where the folders are so named; raises `Refusal`."""
    raw = read_config(folder)
    files = read_files(folder)
    if roots is not None and (outside := [p.name for p in files if not within(p, roots)]):
        raise Refusal(f"{folder / outside[0]} is a link to a place outside the folders that checkpoints are read from.")
    stamp = folder_stamp(files)
    tensors = read_headers(folder)
    known = facts(raw, tensors, str(folder))
    run, label = run_and_label(folder)
    step = label.step if label else None
    return Checkpoint(
        id=f"{run}/{folder.name}" if run else folder.name,
        source=_shown(folder),
        folder=str(folder.resolve()),
        run=run,
        step=step,
        stage=label.stage if label else None,
        tokens=tokens_at(folder, step),
        stamp=stamp,
        fingerprint=_fingerprint(raw, files[1:], digests, hash_all),
        **known,
    )


def run_and_label(folder: Path) -> tuple[str | None, Label | None]:
    """RUN and what STEP says of a folder RUN/STEP, or nothing."""
    found = read(folder.name)
    return (folder.resolve().parent.name, found) if found else (None, None)


def current_stamp(folder: Path) -> str:
    """The stamp of a folder's files as they are now."""
    return folder_stamp(read_files(folder))


def read_files(folder: Path) -> list[Path]:
    """Every file that decides an answer: config, weights, and the tokenizer, which decides what the model is shown."""
    return [folder / "config.json", *weight_files(folder), *_tokenizer(folder)]


def _tokenizer(folder: Path) -> list[Path]:
    return [folder / name for name in TOKENIZER if (folder / name).is_file()]


def _fingerprint(raw: dict[str, Any], files: list[Path], digests: Digests, hash_all: bool) -> str | None:
    """SHA-256 over the config's meaning and the content of every weight and tokenizer file."""
    if not hash_all and sum(p.stat().st_size for p in files) > HASHED_AT_ONCE:
        contents = [digests.known(p) for p in files]
    else:
        contents = [digests.of(p) for p in files]
    return None if None in contents else _mark(raw, contents)


def _mark(raw: dict[str, Any], contents: Sequence[str | None]) -> str:
    return hashlib.sha256(json.dumps([raw, contents], sort_keys=True).encode()).hexdigest()


def _shown(folder: Path) -> str:
    here = Path.cwd()
    real = folder.resolve()
    return str(real.relative_to(here)) if real.is_relative_to(here) else str(real)
