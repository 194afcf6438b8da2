"""A dense step as experts that serve every token, which measures can read: its block twice, each with half the weight.

Twice, since one expert is no mixture and is refused as one. The function is the same, 1/2 f(x) + 1/2 f(x), and each
copy has the inputs and outputs of the dense block.
"""

from pathlib import Path

from torch import Tensor, cat, zeros

from analysis.errors import NotComparable
from analysis.lab.config import LabMoeConfig
from analysis.lab.model import LabMoeForCausalLM
from analysis.lab.routers import DENSE
from backend.lab.model_files import load_state, save_step

COPIES = 2
_MLP = ".mlp."
_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


def as_copies(step: Path, target: Path) -> None:
    """Write `step` to `target` with each block's SwiGLU as two equal experts under a router of zeros.

    No tensor of the block is changed: softmax over two scores of 0 is a half for each, and both are served.

    Raises:
        NotComparable: If the step has experts already.
    """
    config = LabMoeConfig.from_pretrained(step)
    if config.router != DENSE:
        raise NotComparable(
            f"{step.parent.name}/{step.name} has the router {config.router!r}; only a dense step is copied into experts"
        )
    config.router, config.num_experts, config.num_experts_per_tok = "unbalanced", COPIES, COPIES
    model = LabMoeForCausalLM(config)
    weights = _as_experts(load_state(step), config)
    kept = model.load_state_dict(weights, strict=False)
    if kept.unexpected_keys or set(kept.missing_keys) - set(model.all_tied_weights_keys):
        raise ValueError(f"{step}: tensors of another model: {kept}")
    save_step(model, weights, step, target)


def _as_experts(dense: dict[str, Tensor], config: LabMoeConfig) -> dict[str, Tensor]:
    found = {name: tensor for name, tensor in dense.items() if _MLP not in name}
    for layer in range(config.num_hidden_layers):
        block = f"model.layers.{layer}{_MLP}"
        gate, up, down = (dense[f"{block}{name}.weight"] for name in _PROJECTIONS)
        found[f"{block}experts.gate_up_proj"] = cat([gate, up]).repeat(COPIES, 1, 1)
        found[f"{block}experts.down_proj"] = down.repeat(COPIES, 1, 1)
        found[f"{block}gate.weight"] = zeros(COPIES, config.hidden_size)
    return found
