"""The settings of a run: with the token ids, all that decides its weights."""

from dataclasses import dataclass, field
from math import cos, pi
from typing import Any, Literal

from analysis.lab.config import LabMoeConfig
from analysis.lab.routers import DENSE, serves_all
from backend.errors import NotFound

CONTEXT = 128
DOMAINS = ("code", "mathematics", "story", "fact")
SEQUENCES_PER_DOMAIN = 4  # a batch: 4 domains x 4 sequences x 128 tokens


def tokens_a_step(sequences: int = SEQUENCES_PER_DOMAIN) -> int:
    """Tokens of one batch, of `sequences` of each domain."""
    return len(DOMAINS) * sequences * CONTEXT


class UnknownSize(NotFound):
    """Raised when a size is none of the lab's; the text lists them."""


@dataclass(frozen=True)
class Size:
    """Width of model and of one expert, number of experts, of layers, of experts a token; spread of initial weights."""

    hidden: int
    expert: int
    experts: int
    layers: int
    top_k: int = 2
    heads: int = 4
    initializer_range: float = 0.06  # 0.02 is slower at width 64: loss 5.10 against 5.06 after 200 steps


SIZES = {
    "s32": Size(32, 32, 8, 3),
    "s64": Size(64, 64, 8, 4),
    "100m": Size(512, 448, 16, 8, top_k=2, heads=8, initializer_range=0.02),  # OLMoE's
    "1b": Size(1024, 960, 32, 10, top_k=4, heads=16, initializer_range=0.02),
}

# The config key that says how fast each rule balances; rules left out have none.
BALANCING_KEY = {
    "softmax_aux": "router_aux_loss_coef",
    "loss_free": "router_bias_update_speed",
    "kmeans": "router_bias_update_speed",
    "sigmoid_aux": "router_aux_loss_coef",
    "sigmoid_free": "router_bias_update_speed",
}


@dataclass(frozen=True)
class Vocabulary:
    """What the model must know of its tokenizer."""

    size: int
    pad: int | None
    bos: int | None
    eos: int | None


@dataclass(frozen=True)
class RunSettings:
    """One run. `balancing` is the speed of the router's own rule, or None where it has none.

    A batch holds `sequences` of each of the four domains. `options` are fields of the model's config;
    `row_optimiser` moves the rows of learned routers (`train.ROWS_BY_SGD` says what else changes with it).
    """

    router: str
    seed: int
    size: str
    steps: int
    balancing: float | None = None
    peak_learning_rate: float = 6e-3
    final_learning_rate: float = 6e-4
    warm_up: int = 100
    weight_decay: float = 0.1
    stored: tuple[int, ...] = (0, 20)
    evaluate_every: int = 200
    sequences: int = SEQUENCES_PER_DOMAIN
    options: dict[str, Any] = field(default_factory=dict)
    row_optimiser: Literal["adamw", "sgd"] = "adamw"

    def learning_rate(self, step: int) -> float:
        """Linear warm-up, then a cosine from the peak to the final rate; `step` counts from 0."""
        if step < self.warm_up:
            return self.peak_learning_rate * (step + 1) / self.warm_up
        done = (step - self.warm_up) / max(1, self.steps - self.warm_up)
        return (
            self.final_learning_rate + (self.peak_learning_rate - self.final_learning_rate) * (1 + cos(pi * done)) / 2
        )


def lab_config(settings: RunSettings, vocabulary: Vocabulary) -> LabMoeConfig:
    """The model's config: every router serves the same active width (expert choice on average) but the soft one."""
    size = _size(settings.size)
    dense = settings.router == DENSE
    options = dict(settings.options)
    if settings.balancing is not None:
        options[BALANCING_KEY[settings.router]] = settings.balancing
    return LabMoeConfig(
        router=settings.router,
        vocab_size=vocabulary.size,
        hidden_size=size.hidden,
        intermediate_size=size.expert * size.top_k if dense else size.expert,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_experts=0 if dense else size.experts,
        num_experts_per_tok=0 if dense else size.experts if serves_all(settings.router) else size.top_k,
        max_position_embeddings=4 * CONTEXT,
        initializer_range=size.initializer_range,
        pad_token_id=vocabulary.pad,
        bos_token_id=vocabulary.bos,
        eos_token_id=vocabulary.eos,
        **options,
    )


def _size(name: str) -> Size:
    if name not in SIZES:
        raise UnknownSize(f"size {name!r} is not known; there are {', '.join(SIZES)}", sorted(SIZES))
    return SIZES[name]
