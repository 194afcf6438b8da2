"""From a source (a local folder or a hub id) to a `Checkpoint`, by headers alone."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from backend.checkpoints import hub
from backend.checkpoints.digests import Digests, folder_stamp
from backend.checkpoints.facts import facts, read_config
from backend.checkpoints.headers import read_headers, weight_files
from backend.checkpoints.identity import Checkpoint
from backend.checkpoints.labels import Label, read
from backend.checkpoints.tokens import tokens_at
from backend.errors import Refusal
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


def inspect(source: str, settings: Settings, revision: str | None = None) -> Checkpoint:
    """What a source holds, without keeping or loading it; raises `Refusal` with the reason it cannot be used."""
    folder = local_folder(source, settings)
    if folder is not None:
        return read_folder(folder, settings.checkpoint_roots, Digests())
    raw, tensors, sha = hub.read(source, revision, settings.hub_token)
    return Checkpoint(id=source, source=source, folder="", revision=sha, **facts(raw, tensors, source))


def fetch(source: str, settings: Settings, revision: str | None, digests: Digests) -> Checkpoint:
    """The same, with all its files on this machine and its fingerprint known."""
    folder = local_folder(source, settings)
    if folder is not None:
        return read_folder(folder, settings.checkpoint_roots, digests, hash_all=True)
    folder, sha = hub.download(source, revision, settings.hub_token)
    # The hub's own cache links into its blobs, outside any root of ours.
    found = read_folder(folder, None, digests, hash_all=True)
    return replace(found, id=source, source=source, revision=sha, run=None, step=None, stage=None, tokens=None)


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
    tokenizer = [folder / name for name in TOKENIZER if (folder / name).is_file()]
    return [folder / "config.json", *weight_files(folder), *tokenizer]


def _fingerprint(raw: dict[str, Any], files: list[Path], digests: Digests, hash_all: bool) -> str | None:
    """SHA-256 over the config's meaning and the content of every weight and tokenizer file."""
    if not hash_all and sum(p.stat().st_size for p in files) > HASHED_AT_ONCE:
        contents = [digests.known(p) for p in files]
    else:
        contents = [digests.of(p) for p in files]
    if None in contents:
        return None
    return hashlib.sha256(json.dumps([raw, contents], sort_keys=True).encode()).hexdigest()


def _shown(folder: Path) -> str:
    here = Path.cwd()
    real = folder.resolve()
    return str(real.relative_to(here)) if real.is_relative_to(here) else str(real)
