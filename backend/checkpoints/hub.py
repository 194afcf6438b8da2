"""The model hub: headers by range request, then safetensors and JSON alone, at a pinned commit.

Pickles and code are never fetched.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from backend.checkpoints.headers import TensorHeader
from backend.errors import Refusal, Unavailable

WANTED = ["*.safetensors", "*.json", "tokenizer.model", "merges.txt", "vocab.txt"]
SECONDS = 10.0


def read(name: str, revision: str | None, token: str | None) -> tuple[dict[str, Any], dict[str, TensorHeader], str]:
    """Config, tensor headers and commit of a hub model; a few kilobytes travel. Raises `Refusal` or `Unavailable`."""
    import huggingface_hub

    with _told(name, revision):
        api = huggingface_hub.HfApi(token=token)
        sha = _commit(api, name, revision)
        config = huggingface_hub.hf_hub_download(name, "config.json", revision=sha, token=token)
        metadata = api.get_safetensors_metadata(name, revision=sha)
    raw = json.loads(Path(config).read_text("utf-8"))
    if not isinstance(raw, dict) or not isinstance(raw.get("model_type"), str):
        raise Refusal(f"The config.json of {name} on the hub names no `model_type`.")
    tensors = {
        tensor: TensorHeader(about.dtype, tuple(about.shape))
        for file in metadata.files_metadata.values()
        for tensor, about in file.tensors.items()
    }
    return raw, tensors, sha


def download(name: str, revision: str | None, token: str | None) -> tuple[Path, str]:
    """The folder of a hub model and its commit; from the cache of earlier downloads where the hub cannot be reached."""
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        with _told(name, revision):
            sha = _commit(huggingface_hub.HfApi(token=token), name, revision)
            folder = huggingface_hub.snapshot_download(name, revision=sha, token=token, allow_patterns=WANTED)
    except Unavailable:
        try:
            folder = huggingface_hub.snapshot_download(
                name, revision=revision, allow_patterns=WANTED, local_files_only=True
            )
        except LocalEntryNotFoundError:
            folder = None
        if folder is None:
            raise
        sha = Path(folder).name  # the cache names a snapshot by its commit
    return Path(folder), sha


def _commit(api: Any, name: str, revision: str | None) -> str:
    info = api.model_info(name, revision=revision, timeout=SECONDS)
    files = [sibling.rfilename for sibling in info.siblings or ()]
    if not any(file.endswith(".safetensors") for file in files):
        raise Refusal(
            f"{name} on the hub has no safetensors file, and pickles are never read; ask for a revision that has (the "
            "hub's converter offers refs/pr/...), or convert it and register the folder."
        )
    return info.sha


@contextmanager
def _told(name: str, revision: str | None) -> Iterator[None]:
    """The hub's many exceptions as sentences."""
    from huggingface_hub import errors

    try:
        yield
    except Refusal:
        raise
    except errors.GatedRepoError as error:
        raise Refusal(f"{name} is gated on the hub: accept its terms there and set HF_TOKEN.") from error
    except errors.RevisionNotFoundError as error:
        raise Refusal(f"{name} has no revision {revision!r} on the hub.") from error
    except errors.RepositoryNotFoundError as error:
        raise Refusal(
            f"There is no model {name} on the hub, or it is private (set HF_TOKEN); no local folder has that name."
        ) from error
    except errors.NotASafetensorsRepoError as error:
        raise Refusal(f"{name} on the hub has no model.safetensors; only safetensors are read.") from error
    except errors.EntryNotFoundError as error:
        raise Refusal(f"{name} on the hub has no config.json, so it is no transformers checkpoint.") from error
    except errors.HFValidationError as error:
        raise Refusal(f"{name} is no hub id: {error}") from error
    except Exception as error:  # whatever HTTP library the hub's client uses, its errors mean: not reachable
        raise Unavailable(
            f"The model hub cannot be reached for {name} ({type(error).__name__}); no local folder has that name. "
            "Give a folder, or try again when online."
        ) from error
