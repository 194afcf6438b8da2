"""Whether a simple classifier can tell from the routing alone what kind of prompt it was."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from analysis.classifier import fold_accuracies, fold_of_prompt
from analysis.errors import TooFew
from analysis.knob import Range, Seed
from analysis.measure import Chance, Values, measure
from analysis.nulls import central_band
from analysis.result import Reason
from analysis.signatures import NO_TOKENS, Weighting, said, signatures
from analysis.slots import Shape
from analysis.statistic import State

Features = Literal["standardised", "shares", "per_token"]
DRAWS, FEWEST_DRAWS, PRODUCTS = 99, 19, 1e8

ROUTERS = 5
"""Random routers of token ids, whose accuracies are averaged."""


@measure(
    title="Task classifier",
    question="Can the kind of a prompt be read off its routing?",
    unit="accuracy on held-out prompts (0 to 1), mean over folds",
    family="routing",
    source="Avinash 2026, arXiv 2603.11114",
    axes=(),
    interval="leaving prompts out changes folds and training together; the spread over folds is a fact",
    slow=True,
)
def signature_classifier(
    prompt_counts: State,
    token_routes: State,
    *,
    folds: Annotated[int, Range(2)] = 5,
    weighting: Weighting = "auto",
    features: Features = "standardised",
    penalty: Annotated[float, Range(0, ends=False)] = 1.0,
    seed: Seed = 0,
) -> Values:
    """Mean accuracy of multinomial logistic regression on signatures over stratified folds of held-out prompts.

    Each feature is standardised by the training prompts of its fold, or left as it is: a share of a prompt's selections
    (`shares`), or selections per token (`per_token`), k times that, which the penalty weighs differently. The published
    92.5 % +- 6.1 % fixes 5 or 10 folds and the population's standard deviation; `penalty` (scikit-learn's C, with two
    categories half of it), `features` and `seed` are our guesses. A copy of a text is used once.

    Formula:
        A = mean over folds of the share of held-out prompts p with argmax_c (w_c . z_p + b_c) = category of p
        w, b minimise penalty sum_p -ln softmax_c(w_c . z_p + b_c) [own category] + |w|^2 / 2 over the training prompts
        z_p: the shares of selections of all experts of all layers, each minus its training mean, over its training sd.

    Returns:
        One number, 0 to 1. The facts hold the spread over folds (population standard deviation) and the controls under
        the same folds: the most frequent category, the prompt's length alone, its token ids alone, and signatures of
        the same size by routers that send each token id to k experts drawn at random, layer by layer (mean of five; not
        for a fully soft router). The control of an untrained router is step 0 of the same run, asked by itself.

    Raises:
        TooFew: If there are not two categories with two different texts each.
        BadKnob: If there are fewer than two folds, or the penalty is not positive, or the seed not 0 to 2**32 - 1.

    Source:
        Avinash 2026, arXiv 2603.11114.

    Caveat:
        Read it beside its controls: routing that only repeats the words of a prompt is as accurate as the words. An
        untrained router tells categories apart as well, because different tokens reach different experts by accident:
        compare with step 0 of the run where there is one, and where there is none with the random router of token ids,
        which knows the words but not their context.
    """
    shares, scaled = signatures(prompt_counts, weighting, features == "per_token"), features == "standardised"
    caveats = said(prompt_counts, weighting, shares)
    task = _task(prompt_counts, shares, folds, seed)
    if task is None:
        return Values(torch.tensor(torch.nan), caveats=caveats or (NO_TOKENS,))
    accuracy = fold_accuracies(task.features, task.labels, task.fold, penalty, scaled=scaled)[0]
    tokens = prompt_counts["tokens"].double()[task.rows, None]
    length = float(fold_accuracies(tokens, task.labels, task.fold, penalty).mean())
    used = int(task.fold.max()) + 1
    facts: dict[str, int | float | str] = {
        "sd over folds": float(accuracy.std(correction=0)),
        "folds": used,
        "prompts": len(task.labels),
        "always the most frequent category": float(task.labels.bincount().max() / len(task.labels)),
        "from the prompt's length alone": length,
    }
    if bool((token_routes["token"] >= 0).all()):
        bags = _bags(token_routes)[task.rows] / tokens
        facts["from its token ids alone"] = float(fold_accuracies(bags, task.labels, task.fold, penalty).mean())
        if not prompt_counts.soft:
            drawn = _of_random_routers(bags, prompt_counts.shape, seed, features)
            each = [fold_accuracies(one, task.labels, task.fold, penalty, scaled=scaled).mean() for one in drawn]
            facts["from a random router of its token ids"] = float(torch.stack(each).mean())
    else:
        caveats += ("These routes carry no token ids, so the control by token ids is left out.",)
    if used < folds:
        caveats += (f"{used} folds and not {folds}: the smallest category has {used} different prompts.",)
    return Values(accuracy.mean(), facts=facts, caveats=caveats)


@signature_classifier.chance
def null(
    prompt_counts: State,
    token_routes: State,
    *,
    folds: int,
    weighting: Weighting,
    features: Features,
    penalty: float,
    seed: int,
    generator: torch.Generator,
) -> Chance | Reason:
    """The same accuracy when signatures are dealt to the prompts at random.

    Returns:
        Mean and central 95 % band; fact `permutation p`.

    Source:
        Fisher 1935; p = (1 + draws at least as large) / (1 + draws).
    """
    shares = signatures(prompt_counts, weighting, features == "per_token")
    task = _task(prompt_counts, shares, folds, seed)
    if task is None:
        return Reason("no prompt has a signature")
    prompts, width = task.features.shape
    draws = int(min(DRAWS, max(FEWEST_DRAWS, PRODUCTS // (folds * prompts * min(prompts, width) ** 2))))
    orders = torch.rand(draws, prompts, generator=generator).argsort(-1)
    orders = torch.cat([torch.arange(prompts)[None], orders])
    scaled = features == "standardised"
    means = fold_accuracies(task.features, task.labels, task.fold, penalty, orders, scaled).mean(-1)
    p = float((means >= means[0] - 1e-12).double().mean())
    how = f"{draws} random deals of the signatures to the prompts, same folds"
    return Chance(means[1:].mean(), *central_band(means[1:]), how, {"permutation p": p})


@dataclass(frozen=True)
class _Task:
    """Prompts with a signature, each text once: their place in the state, features, label and fold."""

    rows: Int[Tensor, " prompt"]
    features: Float[Tensor, "prompt feature"]
    labels: Int[Tensor, " prompt"]
    fold: Int[Tensor, " prompt"]


def _task(state: State, shares: Float[Tensor, "prompt layer expert"], folds: int, seed: int) -> _Task | None:
    known = ~shares.isnan().any(-1).any(-1)
    if not bool(known.any()):
        return None
    first = {digest: row for row, digest in reversed(list(enumerate(state.prompts.digests))) if known[row]}
    rows = torch.tensor(sorted(first.values()))
    categories = [state.prompts.categories[row] for row in rows.tolist()]
    names = sorted(set(categories))
    labels = torch.tensor([names.index(c) for c in categories])
    if len(names) < 2 or (smallest := int(labels.bincount().min())) < 2:
        raise TooFew(
            f"{len(rows)} different prompts in {len(names)} categories ({', '.join(names)}): a classifier needs two "
            "categories with two prompts each"
        )
    return _Task(rows, shares[rows].flatten(1), labels, fold_of_prompt(labels, min(folds, smallest), seed))


def _bags(routes: State) -> Float[Tensor, "prompt id"]:
    ids, column = routes["token"].unique(return_inverse=True)
    cell = routes["prompt"] * len(ids) + column
    counts = torch.bincount(cell, minlength=len(routes.prompts) * len(ids))
    return counts.view(len(routes.prompts), len(ids)).double()


def _of_random_routers(
    bags: Float[Tensor, "prompt id"], shape: Shape, seed: int, features: Features = "standardised"
) -> Iterator[Float[Tensor, "prompt x"]]:
    """Signatures by routers that know the token id alone; one layer's table of all ids is held at a time."""
    generator, ids = torch.Generator().manual_seed(seed), bags.shape[1]
    each = 1.0 if features == "per_token" else 1 / shape.top_k
    for _ in range(ROUTERS):
        layers = []
        for _ in shape.layers:
            chosen = torch.rand(ids, shape.experts, generator=generator).topk(shape.top_k, -1).indices
            layers.append(bags @ torch.zeros(ids, shape.experts, dtype=bags.dtype).scatter_(1, chosen, each))
        yield torch.cat(layers, -1)
