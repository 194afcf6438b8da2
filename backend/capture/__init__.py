"""One pass of a model over prompts, as batches that statistics can read: routing is read, padding never counts."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from analysis.errors import GeometryError, TooFew, UnknownName
from analysis.slots import LayerBatch, Prompts, RouteBatch, TokenKeys
from analysis.statistic import NEEDS
from backend.adapters.anatomy import Anatomy
from backend.adapters.law import TOKENS, Verified, verify
from backend.adapters.watch import Extra, Trace, watch
from backend.capture.assemble import Routed, layer_batch, route_batch, routed_of, with_experts, with_shared_norms
from backend.capture.backward import run_with_gradients
from backend.capture.fitting import fitting
from backend.capture.tokens import (
    Encoded,
    PromptLike,
    TokenClasses,
    batches,
    counted_rows,
    encode,
    keys_of,
    padded,
    parted,
    prompts_of,
)

__all__ = ["CaptureOptions", "Captured", "capture", "verified"]

LOGIT_BYTES = 2**30
"""Logits of a batch over the whole vocabulary, in float32, stay below this; it bounds batches of large vocabularies."""
GATE_BYTES = 2**30
"""Pre-activations of a batch, of all layers and slots, stay below this where a statistic needs them."""
NO_SHARED = (
    "the model has a shared expert that no adapter can read (its block does more than to add it, times its weight, to "
    "the routed experts' output): it has no row in any table"
)
BACKWARD = 4
"""A pass with gradients keeps what every layer did, so its batches are smaller by this factor."""


@dataclass(frozen=True)
class CaptureOptions:
    """How prompts become tokens. `generate` greedy tokens follow each prompt, which is cut at `max_tokens` before.

    `first_token` false leaves the first token of each prompt (BOS, where the tokenizer sets one) out of whatever is
    counted or summed; the model sees it all the same.
    """

    generate: int = 0
    chat_template: bool = False
    first_token: bool = True
    max_tokens: int = 2048
    batch_tokens: int = 4096

    @property
    def alone(self) -> bool:
        """Whether a prompt of a single token has one that counts."""
        return self.first_token or self.generate > 0

    def __post_init__(self) -> None:
        """Refuse numbers that no pass can have."""
        if self.generate < 0 or self.max_tokens < 1 or self.batch_tokens < 1:
            raise GeometryError(f"generate must be 0 or more, max_tokens and batch_tokens 1 or more; got {self}")


@dataclass(frozen=True)
class Captured:
    """One micro-batch: routing of all layers, or None; the layers, or none; and sentences about what was left out."""

    route: RouteBatch | None
    layers: tuple[LayerBatch, ...]
    notes: tuple[str, ...] = ()


_LOCKS: WeakKeyDictionary[torch.nn.Module, threading.Lock] = WeakKeyDictionary()
_LOCKS_LOCK = threading.Lock()
_VERIFIED: WeakKeyDictionary[Anatomy, Verified] = WeakKeyDictionary()


def capture(
    model: Any,
    anatomy: Anatomy,
    tokenizer: Any,
    prompts: Sequence[PromptLike],
    options: CaptureOptions,
    needs: frozenset[str],
) -> Iterator[Captured]:
    """Run the prompts and yield after each micro-batch, so that a caller can stop or do something else in between.

    Hooks live within one forward pass and only on the thread that runs it; a second capture of the same model waits for
    the pass, not for the capture. Generation is greedy, one prompt at a time, so that it does not depend on which
    prompts share a batch; then one pass over prompt and continuation gives the routes of both. The first capture of an
    anatomy holds it to the block law; a shared expert that does not keep it is left out of the batches, their shape
    included, and the notes say so. A prompt without any token is listed among the first batch's prompts and owns no
    row. Prompts are cut at `max_tokens`, or where the model's positions end, and the notes say so.

    Raises:
        UnknownName: If `needs` names what no pass gives.
        GeometryError: If the model is training, or cannot generate, or the tokenizer has no chat template.
        TooFew: If there is no token in any prompt.
        AdapterLies: If the model does other than the adapter says.
    """
    run, encoded = begun(model, anatomy, tokenizer, prompts, options, needs)
    return run.batches(encoded)


def begun(
    model: Any,
    anatomy: Anatomy,
    tokenizer: Any,
    prompts: Sequence[PromptLike],
    options: CaptureOptions,
    needs: frozenset[str],
) -> tuple[Run, list[Encoded]]:
    """What a capture is asked, checked, and the prompts as tokens; raises as `capture` does."""
    if unknown := set(needs) - set(NEEDS):
        raise UnknownName(f"a capture cannot give {sorted(unknown)}; it gives {', '.join(sorted(NEEDS))}")
    if model.training:
        raise GeometryError(
            "the model is in training mode, where routers may jitter or sample: call model.eval() first"
        )
    if options.generate and not hasattr(model, "generate"):
        raise GeometryError(f"{type(model).__name__} has no language-model head, so it cannot generate")
    limit = _limit(model, options)
    encoded = [encode(tokenizer, p, chat_template=options.chat_template, max_tokens=limit) for p in prompts]
    if not parted(encoded, options.alone)[0]:
        beside = "" if options.alone else " beside its first"
        raise TooFew(f"none of the {len(encoded)} prompts has a token{beside}, so there is nothing to run")
    return Run(model, anatomy, tokenizer, options, needs), encoded


def verified(anatomy: Anatomy) -> Verified | None:
    """How well this anatomy kept the block law at its first capture; None before."""
    return _VERIFIED.get(anatomy)


def remember(anatomy: Anatomy, found: Verified) -> None:
    """It was held to the block law elsewhere."""
    _VERIFIED[anatomy] = found


def law_tokens(first: Encoded, device: torch.device) -> Tensor:
    """The few tokens of a prompt on which a model is held to the block law."""
    ids = torch.tensor(first.ids, device=device)
    return ids.repeat(TOKENS)[:TOKENS] if len(ids) < TOKENS else ids[:TOKENS]


@dataclass(frozen=True)
class Run:
    """The fixed part of one capture."""

    model: Any
    anatomy: Anatomy
    tokenizer: Any
    options: CaptureOptions
    needs: frozenset[str]

    def batches(self, encoded: Sequence[Encoded]) -> Iterator[Captured]:
        """One `Captured` for each micro-batch."""
        full, empty = parted(encoded, self.options.alone)
        run, notes = self, ()
        if not self._verify(full[0]).keeps_shared:
            run, notes = replace(self, anatomy=self.anatomy.without_shared()), (NO_SHARED,)
        for captured in run._batches(full, empty):
            yield replace(captured, notes=(*notes, *captured.notes))
            notes = ()

    def _batches(self, full: list[Encoded], empty: list[Encoded]) -> Iterator[Captured]:
        classes, cut = TokenClasses(self.tokenizer), batches(full, self.budget(), self.options.generate)
        if self.options.generate:
            cut = ([self._continue(each) for each in batch] for batch in cut)
        # Prompts without a token stand in the first batch that went through.
        untold = list(empty)
        for captured, notes in fitting(cut, lambda batch: self._captured([*batch, *untold], len(batch), classes)):
            yield replace(captured, notes=(*notes, *captured.notes))
            untold.clear()

    def _captured(self, batch: list[Encoded], full: int, classes: TokenClasses) -> Captured:
        traces, predicted = self._pass(batch[:full])
        tokens = prompts_of(batch), keys_of(batch, classes, predicted, self.options.first_token)
        pairs = list(zip(self.anatomy.layers, traces, strict=True))
        routed = [routed_of(layer, trace) for layer, trace in pairs]
        route = route_batch(self.anatomy.shape, *tokens, routed) if "routes" in self.needs else None
        layers: tuple[LayerBatch, ...] = ()
        if self.needs - {"routes"}:
            layers = tuple(self.layer_batch(n, tokens, t, routed[n]) for n, t in enumerate(traces))
        return Captured(route, layers, notes_of(batch, full))

    @property
    def extra(self) -> Extra:
        """What to keep of the experts in flight."""
        layers = bool(self.needs - {"routes"})
        return Extra(layers=layers, norms="outputs" in self.needs, gate="gate" in self.needs)

    def layer_batch(self, index: int, tokens: tuple[Prompts, TokenKeys], trace: Trace, routed: Routed) -> LayerBatch:
        """One layer of a micro-batch, with its experts, and what the shared one gives, where a statistic reads them."""
        batch = layer_batch(self.anatomy, index, tokens, trace, routed)
        if "outputs" in self.needs:
            batch = with_shared_norms(self.anatomy.layers[index], batch)
        return with_experts(self.anatomy.layers[index], batch) if "experts" in self.needs else batch

    def _pass(self, batch: list[Encoded]) -> tuple[list[Trace], Tensor]:
        device = self.model.device
        ids, mask = (t.to(device) for t in padded(batch, self.pad()))
        rows = counted_rows(mask, self.options.first_token)
        with _lock(self.model), watch(self.anatomy, rows, mask.numel(), self.extra) as traces:
            if "backward" in self.needs:
                out, gradients = run_with_gradients(self.model, self.anatomy, ids, mask)
                for trace, gradient in zip(traces, gradients, strict=True):
                    trace.task_gradient = gradient.index_select(0, rows.to(gradient.device))
            else:
                with torch.no_grad():
                    out = self.model(input_ids=ids, attention_mask=mask, use_cache=False)
        return traces, predicted_at(out, rows)

    @torch.no_grad()
    def _continue(self, each: Encoded) -> Encoded:
        """Greedy tokens after the prompt, the end-of-text token included."""
        ids = torch.tensor([each.ids], device=self.model.device)
        out = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=self.options.generate,
            do_sample=False,
            num_beams=1,
            repetition_penalty=1.0,
            no_repeat_ngram_size=0,
            pad_token_id=self.pad(),
        )
        return each.continued(out[0, ids.shape[1] :].tolist())

    def _verify(self, first: Encoded) -> Verified:
        if self.anatomy not in _VERIFIED:
            with _lock(self.model):
                found = verify(self.model, self.anatomy, law_tokens(first, self.model.device))
            remember(self.anatomy, found)
        return _VERIFIED[self.anatomy]

    def pad(self) -> int:
        """The id that fills a batch."""
        return self.tokenizer.pad_token_id or 0

    def budget(self) -> int:
        """Tokens of a padded batch."""
        vocabulary = getattr(self.model.config.get_text_config(), "vocab_size", 1)
        tokens = min(self.options.batch_tokens, LOGIT_BYTES // (4 * vocabulary))
        if "gate" in self.needs:
            shape, size = self.anatomy.shape, self.model.dtype.itemsize
            tokens = min(tokens, GATE_BYTES // (len(shape.layers) * shape.top_k * 2 * shape.hidden * size))
        return max(1, tokens // BACKWARD if "backward" in self.needs else tokens)


def predicted_at(out: Any, rows: Tensor) -> Tensor:
    """The likeliest next id at these rows of the flattened batch; -1 of a bare decoder, which predicts nothing."""
    logits = getattr(out, "logits", None)
    if logits is None:
        return torch.full((len(rows),), -1, device=rows.device)
    return logits.detach().argmax(-1).flatten()[rows].to(rows.device)


def _lock(model: torch.nn.Module) -> threading.Lock:
    with _LOCKS_LOCK:
        return _LOCKS.setdefault(model, threading.Lock())


def _limit(model: Any, options: CaptureOptions) -> int:
    """Prompt tokens that fit: what was asked for, or what the model's positions leave beside the generated ones."""
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    room = options.max_tokens if positions is None else min(options.max_tokens, positions - options.generate)
    if room < 1:
        raise GeometryError(f"{options.generate} generated tokens leave no room for a prompt in {positions} positions")
    return room


def notes_of(batch: Sequence[Encoded], full: int) -> tuple[str, ...]:
    """Sentences about what was left out of these prompts, of which the first `full` have tokens that count."""
    cut = [each for each in batch if each.cut]
    notes = []
    if cut:
        names = ", ".join(f"{each.prompt.id} ({each.cut} left out)" for each in cut)
        notes.append(f"{len(cut)} of {len(batch)} prompts cut at {cut[0].given} tokens: {names}")
    for length, what in enumerate(("no token", "no token beside the first")):
        if lost := [each.prompt.id for each in batch[full:] if len(each) == length]:
            notes.append(f"{len(lost)} of {len(batch)} prompts have {what} and count for nothing: {', '.join(lost)}")
    return tuple(notes)
