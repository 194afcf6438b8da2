"""A step of a run as a folder that stands alone: config, weights, tokenizer. Written whole or not at all."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.models.auto.tokenization_auto import AutoTokenizer

from analysis.lab.model import LabMoeForCausalLM
from backend.lab.settings import Vocabulary

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


def step_folder(run: Path, step: int) -> Path:
    """Where a step of a run lies."""
    return run / f"step-{step:05d}"


def vocabulary(tokenizer_folder: Path) -> Vocabulary:
    """Size and special ids of the tokenizer in a folder."""
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    return Vocabulary(len(tokenizer), tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id)


def state(model: LabMoeForCausalLM) -> dict[str, Tensor]:
    """Everything a step stores: parameters, centroids, selection biases; the tied head once."""
    tied = model.all_tied_weights_keys
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items() if name not in tied}


def save_step(model: LabMoeForCausalLM, weights: Mapping[str, Tensor], tokenizer_folder: Path, target: Path) -> None:
    """Write a step: float16 on disk (half the size, rounding 2e-4 of the norm), float32 when loaded."""
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    halves = {name: tensor.to(torch.float16).contiguous() for name, tensor in weights.items()}
    save_file(halves, partial / "model.safetensors", metadata={"format": "pt"})
    (partial / "model.safetensors").chmod(0o644)  # safetensors makes it readable by its owner alone
    # The config names the dtype to compute in, which `from_pretrained` takes over that of the file.
    model.config.dtype = torch.float32
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(partial)
    for name in TOKENIZER_FILES:
        if (source := tokenizer_folder / name).is_file():
            compact = json.dumps(json.loads(source.read_text("utf-8")), ensure_ascii=False, separators=(",", ":"))
            (partial / name).write_text(compact + "\n", "utf-8")
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)


def load_state(folder: Path) -> dict[str, Tensor]:
    """The stored tensors of a step, in float32."""
    return {name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}


def relative_distance(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """Norm of the difference of two whole states over the norm of the second."""
    if ours.keys() != theirs.keys():
        raise ValueError(f"the states differ in their tensors: {sorted(ours.keys() ^ theirs.keys())}")
    difference = sum((ours[name].double() - theirs[name].double()).square().sum().item() for name in theirs)
    norm = sum(tensor.double().square().sum().item() for tensor in theirs.values())
    return (difference / norm) ** 0.5
