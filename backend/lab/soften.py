"""A trained step switched to fully soft routing: the same rows and experts, and every expert serves every token."""

from pathlib import Path

from analysis.errors import NotComparable
from analysis.lab.config import LabMoeConfig
from analysis.lab.model import LabMoeForCausalLM
from backend.lab.model_files import load_state, save_step

SOFTMAX = ("softmax_aux", "loss_free", "unbalanced")
SELECTION_ONLY = "e_score_correction_bias"


def soften(step: Path, target: Path) -> None:
    """Write `step` to `target` with the soft router in the place of its own; what only selection sees is left behind.

    Raises:
        NotComparable: If its scores are no softmax over the experts: another rule would then change too.
    """
    config = LabMoeConfig.from_pretrained(step)
    if config.router not in SOFTMAX:
        raise NotComparable(
            f"{step.parent.name}/{step.name} has the router {config.router!r}; to switch nothing but how many experts "
            f"serve, it must be one of {', '.join(SOFTMAX)}"
        )
    config.router, config.num_experts_per_tok = "soft", config.num_experts
    model = LabMoeForCausalLM(config)
    weights = {name: tensor for name, tensor in load_state(step).items() if not name.endswith(SELECTION_ONLY)}
    kept = model.load_state_dict(weights, strict=False)
    if kept.unexpected_keys or set(kept.missing_keys) - set(model.all_tied_weights_keys):
        raise ValueError(f"{step}: tensors of another model: {kept}")
    save_step(model, weights, step, target)
