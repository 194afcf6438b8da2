"""The config of the lab's model: says what a folder holds without the modelling code, which is slow to import."""

from typing import Any, Literal, no_type_check

from huggingface_hub.dataclasses import strict
from transformers.models.auto.configuration_auto import AutoConfig
from transformers.models.olmoe.configuration_olmoe import OlmoeConfig

from analysis.errors import BadKnob
from analysis.lab.routers import DENSE

MODEL_TYPE = "moe_geometry_lab"


# The tests' type checker would replace the `__init__` that takes any key of a config file by one that takes fields
# alone; `strict` checks the fields in its stead, in tests and out of them.
@no_type_check
@strict
class LabMoeConfig(OlmoeConfig):
    """OLMoE's keys, the name of a router, and the options of those routers that have any."""

    model_type = MODEL_TYPE

    router: str = "softmax_aux"
    router_aux_scope: Literal["sequence", "batch", "global"] = "batch"
    router_z_loss_coef: float = 0.0
    router_bias_update_speed: float = 0.005
    router_bias_rule: Literal["sign", "centred_sign", "proportional"] = "sign"
    kmeans_ema: float = 0.01
    kmeans_temperature: float = 0.1
    kmeans_unit_hidden: bool = True
    kmeans_members: Literal["all", "first"] = "all"
    kmeans_hidden_gradient: bool = True
    kmeans_mixing: Literal["chosen", "all", "sigmoid", "share"] = "chosen"
    kmeans_rate: Literal["step", "token"] = "step"
    kmeans_weighted: bool = False
    kmeans_centred: bool = False
    expert_choice_per_token: int = 2
    norm_topk_prob: bool = True
    tie_word_embeddings: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        """Refuse a dense model that claims experts: its width is `intermediate_size` alone."""
        super().__post_init__(**kwargs)
        if self.router == DENSE and (self.num_experts or self.num_experts_per_tok):
            raise BadKnob(
                f"router 'dense' has no experts, but num_experts={self.num_experts} and "
                f"num_experts_per_tok={self.num_experts_per_tok}; set both to 0, intermediate_size to the active width"
            )


def register() -> None:
    """Make `AutoConfig` know the lab's config; calling it twice is harmless.

    Returns:
        Nothing, no unit.

    Source:
        Ours: registering needs no `trust_remote_code`.
    """
    AutoConfig.register(MODEL_TYPE, LabMoeConfig, exist_ok=True)
