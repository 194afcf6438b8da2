"""A planted world as plain arrays, for readings of the measures that share nothing with the code they judge.

Scores, probabilities, outputs and Jacobians are made anew from inputs and weights in numpy (Jacobians by autograd);
nothing is summed over prompts or blocks beforehand. Only which tokens a sample holds is taken from `token_hash`.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch

from analysis.sampling import token_hash
from tests.analysis.plants import Planted

EXPERTS, LAYERS, CHOSEN = range(6), range(3), 2


def bfloat16(values):
    """What is left of numbers that are kept in bfloat16."""
    return torch.tensor(np.asarray(values)).bfloat16().double().numpy()


def float32(values):
    """What is left of numbers that are kept in float32."""
    return np.asarray(values).astype(np.float32).astype(np.float64)


class Plain:
    """Inputs `x`, matrices, choices `chosen` [layer, token, k] of weights `g`, `task` gradients, prompts and ids."""

    def __init__(self, world: Planted):
        routes, drawing = world.routes, world.drawing
        self.x, self.rows = drawing.x.numpy(), drawing.rows.numpy()
        self.gate, self.up, self.down = (part.numpy() for part in (drawing.gate, drawing.up, drawing.down))
        self.chosen, self.g = routes.indices.numpy(), routes.weights.numpy()
        # Answers list prompts by category, then by id.
        kinds = routes.prompts.categories
        order = sorted(range(len(kinds)), key=lambda i: (kinds[i], routes.prompts.ids[i]))
        self.kinds = np.array([kinds[i] for i in order])
        self.prompt = np.argsort(order)[routes.keys.prompt.numpy()]
        self.ids = routes.keys.token.numpy()
        self.classes = routes.keys.token_class[:, 0].numpy()
        self.task = np.array([batch.task_gradient for batch in world.layers])
        self.hash = token_hash(routes.prompts, routes.keys).numpy()
        self.tokens = range(len(self.ids))
        self.prompts = range(len(kinds))

    @cached_property
    def logits(self):
        return np.einsum("ltd,led->lte", self.x, self.rows)

    @cached_property
    def p(self):
        size = np.exp(self.logits - self.logits.max(-1, keepdims=True))
        return size / size.sum(-1, keepdims=True)

    @cached_property
    def common(self):
        """The tokens on which every expert is asked: those in the lowest eighth of all hashes."""
        return [t for t in self.tokens if self.hash[t] < 2**60]

    @cached_property
    def taken(self):
        """[layer, token, expert]: 1 where the token chose the expert."""
        return np.array(
            [[[float(e in self.chosen[layer, t]) for e in EXPERTS] for t in self.tokens] for layer in LAYERS]
        )

    @cached_property
    def counts(self):
        return self.taken.sum(1)

    @cached_property
    def shares(self):
        """[layer, prompt, expert]: share of the expert in what the prompt's tokens chose."""
        return np.array(
            [
                [self.taken[layer, self.prompt == p].sum(0) / (CHOSEN * sum(self.prompt == p)) for p in self.prompts]
                for layer in LAYERS
            ]
        )

    @cached_property
    def z(self):
        """[layer, token, expert, neuron]: what goes into phi."""
        return np.einsum("ltd,lehd->lteh", self.x, self.gate)

    @cached_property
    def phi(self):
        return self.z / (1 + np.exp(-self.z))

    @cached_property
    def outputs(self):
        """[layer, token, expert, model]: what every expert makes of every token."""
        return np.einsum("lteh,ledh->lted", self.phi * np.einsum("ltd,lehd->lteh", self.x, self.up), self.down)

    @cached_property
    def jacobians(self):
        """[layer, expert, common token, model, model], by autograd."""
        return np.array([[self.slopes(layer, e, self.common) for e in EXPERTS] for layer in LAYERS])

    def slopes(self, layer, e, tokens):
        """The Jacobian of an expert at each of these tokens."""
        gate, up, down = (torch.tensor(part[layer, e]) for part in (self.gate, self.up, self.down))
        x = torch.tensor(self.x[layer, tokens]).requires_grad_()
        y = (torch.sigmoid(x @ gate.T) * (x @ gate.T) * (x @ up.T)) @ down.T
        rows = [torch.autograd.grad(y[:, i].sum(), x, retain_graph=True)[0] for i in range(y.shape[1])]
        return torch.stack(rows, 1).numpy()

    def served(self, layer, e):
        """Tokens of an expert, and the weight it has for each."""
        found = [(t, self.g[layer, t, i]) for t in self.tokens for i in range(CHOSEN) if self.chosen[layer, t, i] == e]
        return [t for t, _ in found], np.array([g for _, g in found])


def cosine(a, b):
    """NaN where one of the two has no direction."""
    sizes = np.linalg.norm(a) * np.linalg.norm(b)
    return np.sum(a * b) / sizes if sizes else np.nan


def pairs():
    return [(e, f) for e in EXPERTS for f in EXPERTS if e < f]


def table(number):
    """number(layer, e, f) for all of them."""
    return np.array([[[number(layer, e, f) for f in EXPERTS] for e in EXPERTS] for layer in LAYERS])


def by_expert(number):
    return np.array([[number(layer, e) for e in EXPERTS] for layer in LAYERS])


def by_layer(number):
    return np.array([number(layer) for layer in LAYERS])
