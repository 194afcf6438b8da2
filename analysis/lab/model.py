"""The lab's language model: OLMoE's, with the router left open.

Everything but the router and the experts' training-time loop is transformers' OLMoE class for class, so tensor names,
config keys and hooks are OLMoE's, and whatever reads, permutes or prunes an OLMoE works here unaltered.
"""

import hashlib
from typing import Any, ClassVar, no_type_check

import torch
from torch import Tensor, nn
from transformers.generation.utils import GenerationMixin
from transformers.initialization import normal_, zeros_
from transformers.integrations.moe import use_experts_implementation
from transformers.modeling_utils import PreTrainedModel
from transformers.models.auto.modeling_auto import AutoModel, AutoModelForCausalLM
from transformers.models.olmoe.modeling_olmoe import (
    OlmoeAttention,
    OlmoeDecoderLayer,
    OlmoeExperts,
    OlmoeForCausalLM,
    OlmoeMLP,
    OlmoeModel,
    OlmoeRMSNorm,
    OlmoeRotaryEmbedding,
    OlmoeSparseMoeBlock,
)
from transformers.utils.output_capturing import OutputRecorder

from analysis.lab.config import LabMoeConfig
from analysis.lab.config import register as register_config
from analysis.lab.router import Router
from analysis.lab.routers import DENSE, build_router


@use_experts_implementation
class LabExperts(OlmoeExperts):
    """OLMoE's experts under a decorator of our own: transformers looks for it in the model's own source file."""


class LabMoeBlock(OlmoeSparseMoeBlock):
    """A router named by the config, and the experts."""

    def __init__(self, config: LabMoeConfig) -> None:
        nn.Module.__init__(self)
        self.gate = build_router(config)
        self.experts = LabExperts(config)


class LabDecoderLayer(OlmoeDecoderLayer):
    """OLMoE's layer with the lab's block, or with a plain SwiGLU in the dense control."""

    def __init__(self, config: LabMoeConfig, layer_idx: int) -> None:
        nn.Module.__init__(self)
        self.hidden_size = config.hidden_size
        self.self_attn = OlmoeAttention(config=config, layer_idx=layer_idx)
        self.mlp = OlmoeMLP(config) if config.router == DENSE else LabMoeBlock(config)
        self.input_layernorm = OlmoeRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = OlmoeRMSNorm(config.hidden_size, eps=config.rms_norm_eps)


class LabMoePreTrainedModel(PreTrainedModel):
    """What base model and language model share."""

    config_class = LabMoeConfig
    config: LabMoeConfig
    base_model_prefix = "model"
    _no_split_modules: ClassVar = ["LabDecoderLayer"]
    _supports_sdpa = True
    _supports_attention_backend = True
    _can_record_outputs: ClassVar = {
        "router_logits": OutputRecorder(Router, index=0),
        "hidden_states": LabDecoderLayer,
        "attentions": OlmoeAttention,
    }

    def _init_weights(self, module: nn.Module) -> None:
        """Transformers' own start, also for the tensors it does not know."""
        PreTrainedModel._init_weights(self, module)
        std = self.config.initializer_range
        if isinstance(module, OlmoeExperts | Router):
            for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
                if tensor.dim() > 1 and _drawn(module, name):
                    normal_(tensor, mean=0.0, std=std)
                elif tensor.dim() == 1:
                    zeros_(tensor)


class LabMoeModel(LabMoePreTrainedModel):
    """Embedding, layers, norm: OLMoE's forward over the lab's layers, whose routers may ask which tokens these are."""

    def __init__(self, config: LabMoeConfig) -> None:
        super().__init__(config)
        self.padding_idx = config.pad_token_id
        self.vocab_size = config.vocab_size
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, self.padding_idx)
        self.layers = nn.ModuleList([LabDecoderLayer(config, index) for index in range(config.num_hidden_layers)])
        self.norm = OlmoeRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary_emb = OlmoeRotaryEmbedding(config=config)
        self.gradient_checkpointing = False
        self.post_init()

    @no_type_check
    def forward(self, input_ids: Any = None, *args: Any, **kwargs: Any) -> Any:
        """OLMoE's own."""
        mask = kwargs.get("attention_mask")
        for router in routers(self):
            router.token_ids = input_ids
            router.real_tokens = mask if isinstance(mask, torch.Tensor) and mask.dim() == 2 else None
        return OlmoeModel.forward(self, input_ids, *args, **kwargs)


class LabMoeForCausalLM(LabMoePreTrainedModel, GenerationMixin):
    """The language model; its head is the embedding."""

    _tied_weights_keys: ClassVar = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: LabMoeConfig) -> None:
        super().__init__(config)
        self.model = LabMoeModel(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.router_aux_loss_coef = config.router_aux_loss_coef
        self.num_experts = config.num_experts
        self.num_experts_per_tok = config.num_experts_per_tok
        self.post_init()

    forward = OlmoeForCausalLM.forward


def register() -> None:
    """Make `AutoConfig`, `AutoModel` and `AutoModelForCausalLM` know the lab's model; calling it twice is harmless.

    Returns:
        Nothing, no unit.

    Source:
        Ours: registering needs no `trust_remote_code`.
    """
    register_config()
    AutoModel.register(LabMoeConfig, LabMoeModel, exist_ok=True)
    AutoModelForCausalLM.register(LabMoeConfig, LabMoeForCausalLM, exist_ok=True)


def routers(model: nn.Module) -> list[Router]:
    """The routers of the lab in a model, first layer first; empty for the dense control.

    Returns:
        The modules themselves, no unit.

    Source:
        Ours.
    """
    return [module for module in model.modules() if isinstance(module, Router)]


@torch.no_grad()
def initialise(model: LabMoeForCausalLM, seed: int) -> None:
    """Fill every matrix from a generator of its own, keyed by the seed and its name.

    So a change of router changes the router's tensors and no other: one stream of random numbers would shift all
    that follow.

    Returns:
        Nothing; entries are normal with standard deviation `initializer_range`, norms 1, biases and the row of the
        padding token 0.

    Source:
        Ours.
    """
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        owner, _, own = name.rpartition(".")
        if tensor.dim() > 1 and _drawn(model.get_submodule(owner), own):
            tensor.normal_(0.0, model.config.initializer_range, generator=_generator(seed, name))
    if (padding := model.config.pad_token_id) is not None:
        model.model.embed_tokens.weight[padding] = 0.0


def _drawn(module: nn.Module, name: str) -> bool:
    """Whether this matrix starts as random numbers: a router says so itself; elsewhere parameters do."""
    if isinstance(module, Router):
        return name in module.drawn
    return name in dict(module.named_parameters(recurse=False))


@torch.no_grad()
def seed_routers(model: nn.Module, input_ids: Tensor, seed: int, attention_mask: Tensor | None = None) -> None:
    """Let each router start from the first batch as it reaches its layer (K-Means places its centroids).

    Padding, where the mask names any, is no start.

    Returns:
        Nothing; the routers change, everything else stays.

    Source:
        Ours.
    """
    hooks = [
        router.register_forward_pre_hook(_seeder(_generator(seed, f"tokens of layer {layer}")))
        for layer, router in enumerate(routers(model))
    ]
    was_training = model.training
    model.eval()
    try:
        model(input_ids, attention_mask=attention_mask, use_cache=False)
    finally:
        model.train(was_training)
        for hook in hooks:
            hook.remove()


def _seeder(generator: torch.Generator) -> Any:
    def seed(router: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(router, Router)
        [hidden] = router.kept(inputs[0].reshape(-1, inputs[0].shape[-1]))
        router.seed(hidden, generator)

    return seed


def _generator(seed: int, name: str) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
