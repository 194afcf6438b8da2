"""Cross-validated multinomial logistic regression, many shufflings of the prompts at once."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from sklearn.model_selection import StratifiedKFold
from torch import Tensor

STEPS = 50
PRECISION = 1e-4
HELD_NUMBERS = 4_000_000


def fold_of_prompt(labels: Int[Tensor, " prompt"], folds: int, seed: int) -> Int[Tensor, " prompt"]:
    """Which fold each prompt is held out in, every fold with its share of every label.

    Args:
        labels: 0 to the number of categories - 1.
        folds: 2 to the size of the smallest category.
        seed: Which prompts fall into which fold.

    Returns:
        0 to folds - 1.

    Source:
        scikit-learn's StratifiedKFold, shuffled.
    """
    place, split = torch.zeros_like(labels), StratifiedKFold(folds, shuffle=True, random_state=seed)
    for fold, (_, test) in enumerate(split.split(np.zeros((len(labels), 1)), labels.numpy())):
        place[torch.from_numpy(test)] = fold
    return place


def fold_accuracies(
    features: Float[Tensor, "prompt feature"],
    labels: Int[Tensor, " prompt"],
    fold: Int[Tensor, " prompt"],
    penalty: float,
    orders: Int[Tensor, "draw prompt"] | None = None,
    scaled: bool = True,
) -> Float[Tensor, "draw fold"]:
    """Share of right answers in each held-out fold, once for every order of the prompts' features.

    Args:
        features: One row per prompt; centred (and scaled) within each fold by its training prompts alone.
        labels: 0 to the number of categories - 1.
        fold: Where each prompt is held out.
        penalty: Inverse strength of the L2 penalty (scikit-learn's C, with two labels half of it).
        orders: Which prompt's features stand in each row; the given order if none.
        scaled: Whether each feature is divided by its standard deviation in training.

    Returns:
        0 to 1 per draw and fold.

    Source:
        Avinash 2026, arXiv 2603.11114 (multinomial logistic regression on signatures, cross-validated).
    """
    rows = torch.arange(len(labels))[None] if orders is None else orders
    folds = int(fold.max()) + 1
    train = fold[None, :] != torch.arange(folds)[:, None]
    batch = max(1, HELD_NUMBERS // (folds * len(labels) * max(len(labels), features.shape[1])))
    found = []
    for some in rows.split(batch):
        scores = fit(coordinates(features[some].double(), train, scaled), labels, train.repeat(len(some), 1), penalty)
        right = (scores.argmax(-1) == labels).double().unflatten(0, (len(some), folds))
        found.append((right * ~train).sum(-1) / (~train).sum(-1))
    return torch.cat(found)


def coordinates(
    features: Float[Tensor, "draw prompt feature"], train: Bool[Tensor, "fold prompt"], scaled: bool = True
) -> Float[Tensor, "problem prompt coordinate"]:
    """All prompts' features, centred and scaled by the training prompts of each fold, along the axes those span.

    The penalty knows no direction, so with more features than prompts the fit in the training prompts' own axes is the
    same fit, at the cost of prompts instead of features.

    Returns:
        No unit, one matrix per draw and fold; a feature that does not vary in training is 0.

    Source:
        scikit-learn's StandardScaler, fitted inside the fold; representer theorem, Kimeldorf & Wahba 1971.
    """
    share = train.double() / train.sum(-1, keepdim=True)
    mean = (share @ features)[:, :, None]
    away = features[:, None] - mean
    spread = torch.einsum("fp,dfpx->dfx", share, away.square()).sqrt()[:, :, None]
    varies = spread > 1e-12 * features.abs().amax(1)[:, None, None]
    # Centring alone changes no fit, since intercepts are free.
    rows = torch.where(varies, away / spread if scaled else away, 0.0)
    if features.shape[-1] > features.shape[-2]:
        inside = rows * train[:, :, None]
        values, vectors = torch.linalg.eigh(inside @ inside.mT)
        held = values > 1e-10 * values[..., -1:]
        axes = torch.where(held, values, 1.0).rsqrt()[..., None, :] * vectors * held[..., None, :]
        rows = (rows @ inside.mT) @ axes
    return rows.flatten(0, 1)


def fit(
    points: Float[Tensor, "problem prompt coordinate"],
    labels: Int[Tensor, " prompt"],
    train: Bool[Tensor, "problem prompt"],
    penalty: float,
) -> Float[Tensor, "problem prompt category"]:
    """Scores of L2-regularised multinomial logistic regressions with free intercepts, all fitted together.

    Newton's method, halving the step of whichever problem would get worse.

    Returns:
        Log odds, summing to 0 over categories; held-out prompts get theirs too.

    Source:
        Boehning 1992; weights that differ between categories only, since the softmax ignores what all share.
    """
    target = torch.nn.functional.one_hot(labels).double()
    contrasts = _contrasts(target.shape[1])
    rows = torch.cat([points, torch.ones_like(points[..., :1])], -1)
    free = torch.ones(rows.shape[-1], 1, dtype=torch.float64)
    free[-1] = 0
    weights = torch.zeros(len(rows), rows.shape[-1], contrasts.shape[1], dtype=torch.float64)

    def loss(weights: Tensor) -> Tensor:
        surprise = -(rows @ weights @ contrasts.T).log_softmax(-1)[..., torch.arange(len(labels)), labels]
        return penalty * (surprise * train).sum(-1) + (free * weights.square()).sum((-1, -2)) / 2

    now = loss(weights)
    for _ in range(STEPS):
        step = _newton_step(rows * train[..., None], rows @ weights @ contrasts.T, target, (weights, free, penalty))
        pace, after = torch.ones_like(now), loss(weights - step)
        while bool((worse := after > now + 1e-9).any()) and float(pace.min()) > 1e-6:
            pace = torch.where(worse, pace / 2, pace)
            after = loss(weights - pace[:, None, None] * step)
        weights, now = weights - pace[:, None, None] * step, after
        if float(step.abs().max()) < PRECISION:
            break
    return rows @ weights @ contrasts.T


def _contrasts(categories: int) -> Float[Tensor, "category contrast"]:
    # An orthonormal basis of what sums to 0: the penalty of the contrasts is that of the weights.
    return torch.linalg.qr(torch.eye(categories, dtype=torch.float64)[:, 1:] - 1 / categories)[0]


def _newton_step(
    inside: Float[Tensor, "problem prompt row"],
    scores: Float[Tensor, "problem prompt category"],
    target: Float[Tensor, "prompt category"],
    state: tuple[Float[Tensor, "problem row contrast"], Float[Tensor, "row one"], float],
) -> Float[Tensor, "problem row contrast"]:
    (weights, free, penalty), contrasts = state, _contrasts(target.shape[1])
    p = scores.softmax(-1)
    slope = penalty * inside.mT @ ((p - target) @ contrasts) + free * weights
    leaning = p @ contrasts
    bend = torch.einsum("...c,ca,cb->...ab", p, contrasts, contrasts) - leaning[..., :, None] * leaning[..., None, :]
    inside_t, classes = inside.mT.contiguous(), range(weights.shape[-1])
    curves = {(a, b): inside_t @ (inside * bend[..., a, b, None]) for a in classes for b in classes if a <= b}
    lines = [torch.cat([curves[min(a, b), max(a, b)] for b in classes], -1) for a in classes]
    hessian = penalty * torch.cat(lines, -2) + torch.diag(free[:, 0].repeat(len(lines)))
    root = torch.linalg.cholesky(hessian)
    step = torch.cholesky_solve(slope.mT.flatten(1)[..., None], root)[..., 0]
    return step.unflatten(-1, (weights.shape[-1], -1)).mT
