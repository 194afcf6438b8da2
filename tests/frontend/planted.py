"""What the fake backend serves: seeded arrays in the API's form. No number here was measured."""

from __future__ import annotations

from typing import Any

import numpy as np

CATEGORIES = ("code", "mathematics", "story", "fact")
LAYERS, EXPERTS, PROMPTS = 4, 8, 24
SIZES = {
    "layer": LAYERS,
    "expert": EXPERTS,
    "expert_b": EXPERTS,
    "prompt": PROMPTS,
    "prompt_b": PROMPTS,
    "coordinate": 2,
}
GROUP = np.arange(PROMPTS) * 4 // PROMPTS


def rng(*key: Any) -> np.random.Generator:
    return np.random.default_rng([sum(map(ord, str(k))) for k in key])


def plain(x: Any) -> Any:
    """Lists and the strings that stand for non-finite numbers."""
    if np.ndim(x):
        return [plain(i) for i in np.asarray(x).tolist()]
    return "NaN" if np.isnan(x) else float(x)


def axis(name: str) -> dict[str, Any]:
    n = SIZES[name]
    if name == "coordinate":
        return {"name": name, "labels": ["component 1", "component 2"]}
    if name.startswith("prompt"):
        labels = [f"p{i:02d}" for i in range(n)]
        return {"name": name, "labels": labels, "groups": [CATEGORIES[g] for g in GROUP]}
    return {"name": name, "labels": [str(i) for i in range(n)]}


def values_of(name: str, axes: tuple[str, ...], start: bool, seed: str) -> np.ndarray:
    """Trained prompts of one category are alike, untrained ones are not; loads are more uneven after training."""
    r, shape = rng(name, seed, start), tuple(SIZES[a] for a in axes)
    if axes == ("prompt", "prompt_b"):
        centres = rng("centres").normal(size=(4, 32))[GROUP]
        points = r.normal(size=(PROMPTS, 32)) + (0 if start else 1.2) * centres + 1.0
        points /= np.linalg.norm(points, axis=1, keepdims=True)
        return points @ points.T
    if axes == ("prompt", "coordinate"):
        return r.normal(size=shape) * 0.6 + (0 if start else 1) * np.array([[0, 3], [3, 3], [0, 0], [3, 0]])[GROUP]
    if name == "expert_load":
        return np.exp(r.normal(size=shape) * (0.05 if start else 0.4))
    return np.abs(r.normal(size=shape)) * (0.1 if start else 0.6)


MEASURES: list[dict[str, Any]] = []


def declare(name: str, family: str, axes: tuple[str, ...], **more: Any) -> None:
    words = name.replace("_", " ")
    told = {
        "name": name,
        "title": words.capitalize(),
        "question": f"What does {words} say?",
        "unit": "cosine (-1 to 1)",
        "source": "planted for tests",
        "family": family,
        "reads": ["prompt_counts"],
        "axes": list(axes),
        "sides": [],
        "knobs": [],
        "slow": False,
        "caveat": "A planted number.",
        "interval_reason": None,
        "null_reason": None,
    }
    MEASURES.append(told | more)


def choice(name: str, *choices: str) -> dict[str, Any]:
    return {"name": name, "kind": "choice", "default": choices[0], "choices": list(choices), "range": None}


COUNT, FORM, METHOD = (
    choice("count", "selected", "served"),
    choice("form", "raw", "centred"),
    choice("method", "pca", "umap"),
)
SEED = {"name": "seed", "kind": "int", "default": 0, "choices": [], "range": "0 to 4,294,967,295"}
CENTRED = {"name": "centred", "kind": "bool", "default": False, "choices": [], "range": None}
SHARE = "load over uniform (0 to E/k; 1 is an equal share)"
declare("expert_load", "routing", ("layer", "expert"), title="Expert load", unit=SHARE, knobs=[COUNT])
declare("load_violation", "routing", ("layer",), unit="excess over an equal share (0 to E/k - 1)", knobs=[COUNT])
declare("signature_similarity", "routing", ("prompt", "prompt_b"), knobs=[FORM])
declare("signature_effect", "routing", ("layer",), unit="Cohen's d")
declare(
    "signature_embedding",
    "routing",
    ("prompt", "coordinate"),
    knobs=[METHOD, CENTRED, SEED],
    unit="coordinates without unit",
)
declare("coactivation", "routing", ("layer", "expert", "expert_b"))
declare("planted_new_measure", "routing", ("layer",), title="A measure no page knows")
declare("router_cosine", "router", ("layer", "expert", "expert_b"), reads=["router_weight"], knobs=[FORM])
declare(
    "load_difference",
    "compare",
    ("layer", "expert"),
    sides=["a", "b"],
    unit="difference of load over uniform (b - a; 0 is no difference)",
)
declare("expert_matching", "compare", ("layer", "expert", "expert_b"), sides=["a", "b"])
declare("planted_scalar", "coupling", ())


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """The API's answer to a question."""
    told = next(m for m in MEASURES if m["name"] == question["measure"])
    axes, first = tuple(told["axes"]), question["checkpoints"][0]
    values = values_of(told["name"], axes, first.endswith("step-00000"), first.split("/")[0])
    if told["sides"]:
        values = values - values_of(told["name"], axes, False, question["checkpoints"][1])
    if told["name"] == "expert_matching":  # expert e of A is e + 1 of B, and the last one nobody
        values = np.full(values.shape, np.nan)
        values[:, range(EXPERTS - 1), range(1, EXPERTS)] = 0.9
    if told["name"] == "coactivation":
        values[1, 3, :] = np.nan
    centre = 1.0 if told["name"] == "expert_load" else 0.0
    null = {"mean": centre, "low": centre - 0.12, "high": centre + 0.12, "how": "planted uniform routing"}
    interval = {
        "low": plain(values - 0.05),
        "high": plain(values + 0.05),
        "level": 0.95,
        "how": "delete-one-block jackknife",
    }
    sampled = told["name"] != "signature_embedding"
    return {
        "measure": told["name"],
        "values": plain(values),
        "axes": [axis(a) for a in axes],
        "unit": told["unit"],
        "null": null if sampled else {"reason": "coordinates have no null"},
        "interval": interval if sampled else {"reason": "see trustworthiness"},
        "caveats": [told["caveat"]],
        "facts": {} if sampled else {"trustworthiness": 0.94},
        "tokens": 4096,
        "prompts": PROMPTS,
        "provenance": {"key": key_of(question), "checkpoints": [{"id": c} for c in question["checkpoints"]]},
    }


def key_of(question: dict[str, Any]) -> str:
    parts = [c.replace("/", ".") for c in question["checkpoints"]] + [str(v) for v in question["knobs"].values()]
    return "-".join([question["measure"], *parts])


def checkpoint(run: str, router: str | None, step: int, **more: Any) -> dict[str, Any]:
    return {
        "id": f"{run}/step-{step:05d}",
        "run": run,
        "step": step,
        "source": f"data/checkpoints/{run}/step-{step:05d}",
        "revision": None,
        "architecture": "moe_geometry_lab",
        "router": router,
        "dense": False,
        "layers": LAYERS,
        "moe_layers": LAYERS,
        "experts": EXPERTS,
        "top_k": 2,
        "soft": False,
        "model": 64,
        "hidden": 64,
        "dtype": "float16",
        "parameters": 592_000,
        "memory_bytes": 2_400_000,
        "fingerprint": f"sha256{run}{step}",
        "adapter": "fused",
        "verified": False,
        "error": None,
    } | more


RUNS = (
    ("aux", "softmax_aux", {}),
    ("free", "loss_free", {}),
    ("kmeans", "kmeans", {}),
    ("none", "unbalanced", {}),
    ("soft", "soft", {"soft": True, "top_k": 8}),
    ("dense", None, {"dense": True, "experts": 0, "top_k": 0, "moe_layers": 0}),
)
CHECKPOINTS = [checkpoint(run, router, step, **more) for run, router, more in RUNS for step in (0, 500, 2000)]
FOUR = {"name": "four-tasks", "digest": "d", "prompts": PROMPTS, "shipped": True, "characters": 9000}
SETS = [
    FOUR | {"categories": dict.fromkeys(CATEGORIES, 6)},
    {"name": "mine", "digest": "e", "prompts": 3, "categories": {}, "shipped": False, "characters": 90},
]


def rows() -> list[dict[str, Any]]:
    return [{"id": f"p{i:02d}", "text": f"Prompt {i}", "category": CATEGORIES[g]} for i, g in enumerate(GROUP)]


REPORT = {
    "name": "mine.csv",
    "format": "csv",
    "rows": 3,
    "good": 1,
    "mended": 1,
    "refused": 1,
    "categories": {"code": 2},
    "problems": [
        {"row": 2, "field": "id", "severity": "mended", "message": "no id: named “row-2”"},
        {"row": 3, "field": "text", "severity": "refused", "message": "text is empty"},
    ],
    "preview": [
        {"row": 1, "id": "a", "text": "Hello", "category": "code", "state": "good"},
        {"row": 2, "id": "row-2", "text": "Ho", "category": "code", "state": "mended"},
        {"row": 3, "id": "c", "text": "", "category": "", "state": "refused"},
    ],
}
