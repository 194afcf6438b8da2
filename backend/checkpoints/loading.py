"""From identity to a model in memory: safetensors alone, no code of the folder, and never with a weight made up."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend.checkpoints.facts import read_config, typed
from backend.checkpoints.identity import Checkpoint
from backend.checkpoints.packed import packing, unpacking
from backend.checkpoints.placement import Places, device_map, spread
from backend.checkpoints.soundness import check_finite, check_shapes
from backend.checkpoints.source import current_stamp
from backend.errors import Conflict, Refusal

if TYPE_CHECKING:
    from transformers.modeling_utils import PreTrainedModel


_VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")


def load(checkpoint: Checkpoint, device: str, places: Places | None = None) -> PreTrainedModel:
    """The model in evaluation mode, on one device, or spread over those that `places` gives bytes of.

    Raises:
        Refusal: It cannot be loaded whole.
        TooLarge: The places together do not take it.
        Conflict: Its files changed since its headers were read.
    """
    _check_error(checkpoint)
    folder = Path(checkpoint.folder)
    kind = _kind(read_config(folder), checkpoint.id)
    try:
        model, report = kind.from_pretrained(
            folder,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # transformers' own refusal names no tensor; ours does
            **held_as(checkpoint),
        )
    except (OSError, ValueError, RuntimeError, KeyError, ImportError) as error:
        raise Refusal(f"transformers could not load {checkpoint.id}: {first_line(error)}") from error
    check_shapes(report["mismatched_keys"], folder, checkpoint.id)
    if missing := sorted(report["missing_keys"]):
        # transformers fills what is missing with random numbers and a warning.
        raise Refusal(
            f"{checkpoint.id} lacks {len(missing)} tensors of its architecture, the first of them {missing[0]}."
        )
    check_finite(model, folder, checkpoint.id)
    if current_stamp(folder) != checkpoint.stamp:
        raise Conflict(f"The files of {checkpoint.id} changed while it was asked about; ask again.")
    if model.config.is_encoder_decoder:  # a prompt is what the encoder reads
        model = model.get_encoder()
    model.eval()
    return model.to(device) if places is None else spread(model, device_map(model, places))


def held_as(checkpoint: Checkpoint) -> dict[str, Any]:
    """What transformers is told of precision, attention and packed weights, whole or layer by layer."""
    attention = {"attn_implementation": checkpoint.attention} if checkpoint.attention else {}
    packed = unpacking(packing(read_config(Path(checkpoint.folder)), checkpoint.id))
    return {"dtype": checkpoint.precision if checkpoint.variant else "auto", **attention, **packed}


def _kind(raw: dict[str, Any], name: str) -> Any:
    """The class that loads it: with its head, if it has one."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModel, AutoModelForCausalLM

    from analysis.lab.model import register

    register()
    return AutoModelForCausalLM if type(typed(raw, name)) in MODEL_FOR_CAUSAL_LM_MAPPING else AutoModel


def load_tokenizer(checkpoint: Checkpoint) -> Any:
    """The tokenizer beside the weights; raises `Refusal` if there is none."""
    from transformers.models.auto.tokenization_auto import AutoTokenizer

    _check_error(checkpoint)
    if not any((Path(checkpoint.folder) / name).is_file() for name in _VOCABULARIES):
        # transformers would make an empty tokenizer of the right class, which turns every text into nothing.
        raise Refusal(
            f"{checkpoint.id} has no tokenizer; put its tokenizer.json (or {', '.join(_VOCABULARIES[1:])}) beside its "
            "weights."
        )
    try:
        return AutoTokenizer.from_pretrained(checkpoint.folder, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise Refusal(f"{checkpoint.id} has a tokenizer that transformers cannot read: {first_line(error)}") from error


def _check_error(checkpoint: Checkpoint) -> None:
    if checkpoint.error:
        raise Refusal(checkpoint.error)
    if not checkpoint.fetched:
        raise Refusal(
            f"The weights of {checkpoint.id} ({checkpoint.weight_bytes / 1e6:,.0f} MB) are still on the hub; ask any "
            "measure of it, which fetches them."
        )


def first_line(error: Exception) -> str:
    """The first line of what transformers says."""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__} {first}" if isinstance(error, KeyError) or not first else first
