"""The model hub: what a repository holds at one commit, its headers by range request, its files into the hub's cache.

Pickles and code are never fetched. The token is the environment's and goes into a request's header, nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.checkpoints.facts import parse_config
from backend.checkpoints.headers import INDEX, PICKLES, SINGLE, TensorHeader, conversion, shard_map
from backend.errors import Refusal, Unavailable
from backend.runners.failures import TaskCancelled

SMALL = re.compile(r"[^/]+\.json|[^/]+\.jinja|tokenizer\.model|spiece\.model|merges\.txt|vocab\.txt")
"""What is fetched beside the weights: config, index, tokenizer; no code, and nothing of a subfolder."""
SECONDS = 10.0
AT_ONCE = 8
"""Headers read at the same time."""

Tell = Callable[[str, int, int], None]
"""Told a file, its bytes that are here, and all its bytes; may raise `TaskCancelled`."""


@dataclass(frozen=True)
class HubFile:
    """One file of a repository; `sha256` is known of what is kept as a large file."""

    name: str
    size: int | None
    sha256: str | None


@dataclass(frozen=True)
class Listing:
    """The files of a repository at one commit."""

    name: str
    commit: str
    files: Mapping[str, HubFile]


def listing(name: str, revision: str | None, token: str | None) -> Listing:
    """What the hub holds under this name now; raises `Refusal`, for pickles alone too, or `Unavailable`."""
    import huggingface_hub

    with _told(name, revision):
        api = huggingface_hub.HfApi(token=token or False)
        info = api.model_info(name, revision=revision, timeout=SECONDS, files_metadata=True)
    files = {
        file.rfilename: HubFile(file.rfilename, file.size, file.lfs.sha256 if file.lfs else None)
        for file in info.siblings or ()
    }
    if not any(file.endswith(".safetensors") for file in files):
        pickles = [file for file in files if file.endswith(PICKLES)]
        raise Refusal(
            f"{name} on the hub has no safetensors file" + (f", only {pickles[0]}" if pickles else "") + "; pickles "
            "run code when they are opened and are never read. Ask for a revision that has safetensors (the hub's "
            f"converter offers refs/pr/...), or, if you trust it, {conversion(name, name.rpartition('/')[2])}, and "
            "name that folder."
        )
    return Listing(name, str(info.sha), files)


def config(found: Listing, token: str | None) -> dict[str, Any]:
    """The repository's config.json."""
    path = _fetched(found.name, found.commit, "config.json", token)
    return parse_config(path, f"The config.json of {found.name} on the hub")


def headers(found: Listing, token: str | None) -> dict[str, TensorHeader]:
    """All tensors that the weights announce; a few kilobytes a file travel. Raises `Refusal` for a file cut off."""
    names = weight_names(found, token)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        every = list(pool.map(lambda file: _header(found, file, token), names))
    tensors = {name: header for held in every for name, header in held.items()}
    if not tensors:
        raise Refusal(f"The safetensors files of {found.name} on the hub hold no tensor.")
    return tensors


def weight_names(found: Listing, token: str | None) -> list[str]:
    """The safetensors files the model is made of; raises `Refusal` if the repository lacks one."""
    if INDEX not in found.files:
        if SINGLE in found.files:
            return [SINGLE]
        raise Refusal(f"{found.name} on the hub has neither {SINGLE} nor {INDEX}, which say what it is made of.")
    names = sorted(set(shard_map(_fetched(found.name, found.commit, INDEX, token)).values()))
    if lost := [name for name in names if name not in found.files]:
        raise Refusal(f"{found.name} on the hub lacks {lost[0]}, which its {INDEX} names.")
    return names


def fetch_small(found: Listing, token: str | None) -> Path:
    """Everything but the weights, into the hub's cache; returns the snapshot's folder there."""
    wanted = [name for name in found.files if SMALL.fullmatch(name) and name != "config.json"]
    folder = _fetched(found.name, found.commit, "config.json", token).parent
    for name in wanted:
        _fetched(found.name, found.commit, name, token)
    return folder


def fetch_weights(name: str, commit: str, files: Sequence[str], token: str | None, tell: Tell) -> None:
    """These files into the hub's cache, one after another; what is there already does not travel again."""
    for file in files:
        _fetched(name, commit, file, token, tell)


def cached(name: str, revision: str | None) -> Path | None:
    """The folder of an earlier download, if the hub's cache on this machine has one; no request is made."""
    import huggingface_hub

    found = huggingface_hub.try_to_load_from_cache(name, "config.json", revision=revision or "main")
    return Path(found).parent if isinstance(found, str) else None


def _header(found: Listing, file: str, token: str | None) -> dict[str, TensorHeader]:
    import huggingface_hub

    with _told(found.name, found.commit, file):
        api = huggingface_hub.HfApi(token=token or False)
        about = api.parse_safetensors_file_metadata(found.name, file, revision=found.commit)
    size = found.files[file].size
    least = 8 + max((tensor.data_offsets[1] for tensor in about.tensors.values()), default=0)
    if size is not None and size < least:
        raise Refusal(
            f"{file} of {found.name} on the hub is cut off: its header announces more than {least:,} bytes, "
            f"{size:,} are there. Tell its owner, or pin an earlier revision."
        )
    return {name: TensorHeader(tensor.dtype, tuple(tensor.shape)) for name, tensor in about.tensors.items()}


def _fetched(name: str, commit: str, file: str, token: str | None, tell: Tell | None = None) -> Path:
    import huggingface_hub

    bar = _bar(file, tell or (lambda file, here, whole: None))
    with _told(name, commit, file):
        return Path(huggingface_hub.hf_hub_download(name, file, revision=commit, token=token or False, tqdm_class=bar))


def _bar(file: str, tell: Tell) -> Any:
    """The progress bar that the hub's client draws on, made to tell us instead of a terminal."""
    from huggingface_hub.utils import tqdm

    class Told(tqdm):
        def __init__(self, *args: Any, **options: Any):
            super().__init__(*args, **{**options, "disable": True})
            self.total, self._here = options.get("total"), options.get("initial") or 0

        def update(self, n: float | None = 1) -> None:
            self._here += int(n or 0)
            tell(file, self._here, int(self.total or self._here))

    return Told


@contextmanager
def _told(name: str, revision: str | None, file: str | None = None) -> Iterator[None]:
    """The hub's many exceptions as sentences; none of them repeats what the hub itself wrote, or was sent."""
    from huggingface_hub import errors

    try:
        yield
    except (Refusal, TaskCancelled):
        raise
    except errors.GatedRepoError as error:
        raise Refusal(f"{name} is gated on the hub: accept its terms there and set HF_TOKEN.") from error
    except errors.RevisionNotFoundError as error:
        raise Refusal(f"{name} has no revision {revision!r} on the hub.") from error
    except errors.RepositoryNotFoundError as error:
        raise Refusal(
            f"There is no model {name} on the hub, or it is private (set HF_TOKEN); no local folder has that name."
        ) from error
    except errors.SafetensorsParsingError as error:
        raise Refusal(f"{file} of {name} on the hub is no safetensors file: its header cannot be read.") from error
    except errors.RemoteEntryNotFoundError as error:
        raise Refusal(f"{name} on the hub has no {file}, so it is no transformers checkpoint.") from error
    except errors.HFValidationError as error:
        raise Refusal(f"{name} is no hub id: {error}") from error
    except Exception as error:
        raise _unreachable(name, file, error) from error


def _unreachable(name: str, file: str | None, error: Exception) -> Unavailable:
    """Whatever HTTP library the hub's client uses, its other errors mean: not reachable, or no longer."""
    from huggingface_hub.errors import OfflineModeIsEnabled

    if isinstance(error, OfflineModeIsEnabled) or isinstance(error.__cause__, OfflineModeIsEnabled):
        return Unavailable(
            f"HF_HUB_OFFLINE is set, so the hub is not asked for {f'{file} of ' if file else ''}{name}, and its cache "
            "on this machine has none. Unset it, or name a folder."
        )
    if file and file.endswith(".safetensors"):
        return Unavailable(
            f"The download of {file} of {name} broke off ({type(error).__name__}); nothing of that file was kept, "
            "other files were. Ask again."
        )
    return Unavailable(
        f"The model hub cannot be reached for {name} ({type(error).__name__}); no local folder has that name. "
        "Give a folder, or try again when online."
    )
