"""A small backend that speaks the API: planted answers, slow jobs, refusals. What it serves is seeded, and no measurement."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse

CATEGORIES = ("code", "mathematics", "story", "fact")
LAYERS, EXPERTS, PROMPTS = 4, 8, 24


def rng(*key: Any) -> np.random.Generator:
    return np.random.default_rng([sum(map(ord, str(k))) for k in key])


def plain(x: Any) -> Any:
    if isinstance(x, np.ndarray | list):
        return [plain(i) for i in np.asarray(x).tolist()] if np.ndim(x) else plain(float(np.asarray(x)))
    return ("NaN" if np.isnan(x) else x) if isinstance(x, float) else x


def axis(name: str, n: int) -> dict[str, Any]:
    groups = {"groups": [CATEGORIES[i * 4 // n] for i in range(n)]} if name.startswith("prompt") else {}
    if name == "coordinate":
        return {"name": name, "labels": ["component 1", "component 2"]}
    return {"name": name, "labels": [f"p{i:02d}" if name.startswith("prompt") else str(i) for i in range(n)]} | groups


SIZES = {"layer": LAYERS, "expert": EXPERTS, "expert_b": EXPERTS, "prompt": PROMPTS, "prompt_b": PROMPTS, "coordinate": 2}


def values_of(name: str, axes: tuple[str, ...], start: bool, seed: str) -> np.ndarray:
    """Planted: trained prompts of one category are alike, untrained ones are not; loads are more uneven after training."""
    r, shape = rng(name, seed, start), tuple(SIZES[a] for a in axes)
    group = np.arange(PROMPTS) * 4 // PROMPTS
    if axes == ("prompt", "prompt_b"):
        points = r.normal(size=(PROMPTS, 32)) + (0 if start else 1.2) * rng("centres").normal(size=(4, 32))[group] + 1.0
        points /= np.linalg.norm(points, axis=1, keepdims=True)
        return points @ points.T
    if axes == ("prompt", "coordinate"):
        return r.normal(size=shape) * 0.6 + (0 if start else 1) * np.array([[0, 3], [3, 3], [0, 0], [3, 0]])[group]
    if "over" in name or name == "expert_load":
        return np.exp(r.normal(size=shape) * (0.05 if start else 0.4))
    return np.abs(r.normal(size=shape)) * (0.1 if start else 0.6)


MEASURES: list[dict[str, Any]] = []


def declare(name: str, family: str, axes: tuple[str, ...], **more: Any) -> None:
    told = {
        "name": name, "title": name.replace("_", " ").capitalize(), "question": f"What does {name.replace('_', ' ')} say?", "unit": "cosine (-1 to 1)",
        "source": "planted for tests", "family": family, "reads": ["prompt_counts"], "axes": list(axes), "sides": [], "knobs": [], "slow": False,
        "caveat": "A planted number.", "interval_reason": None, "null_reason": None,
    }  # fmt: skip
    MEASURES.append(told | more)


COUNT = {"name": "count", "kind": "choice", "default": "selected", "choices": ["selected", "served"]}
FORM = {"name": "form", "kind": "choice", "default": "raw", "choices": ["raw", "centred"]}
METHOD = {"name": "method", "kind": "choice", "default": "pca", "choices": ["pca", "umap"]}
SEED = {"name": "seed", "kind": "int", "default": 0, "choices": []}
declare("expert_load", "routing", ("layer", "expert"), title="Expert load", unit="load over uniform (0 to E/k; 1 is an equal share)", knobs=[COUNT])
declare("load_violation", "routing", ("layer",), title="Load violation (MaxVio)", unit="excess over an equal share (0 to E/k - 1)", knobs=[COUNT])
declare("signature_similarity", "routing", ("prompt", "prompt_b"), knobs=[FORM])
declare("signature_effect", "routing", ("layer",), unit="Cohen's d")
declare("signature_embedding", "routing", ("prompt", "coordinate"), knobs=[METHOD, SEED], unit="coordinates without unit")
declare("coactivation", "routing", ("layer", "expert", "expert_b"))
declare("planted_new_measure", "routing", ("layer",), title="A measure no page knows")
declare("router_cosine", "router", ("layer", "expert", "expert_b"), reads=["router_weight"], knobs=[FORM])
declare("load_difference", "compare", ("layer", "expert"), sides=["a", "b"], unit="difference of loads over uniform")
declare("planted_scalar", "coupling", ())


def answer(question: dict[str, Any]) -> dict[str, Any]:
    told = next(m for m in MEASURES if m["name"] == question["measure"])
    axes, first = tuple(told["axes"]), question["checkpoints"][0]
    values = values_of(told["name"], axes, first.endswith("step-00000"), first.split("/")[0])
    if told["sides"]:
        values = values - values_of(told["name"], axes, False, question["checkpoints"][1])
    if told["name"] == "coactivation":
        values[1, 3, :] = np.nan
    centre = 1.0 if told["name"] == "expert_load" else 0.0
    sampled = told["name"] != "signature_embedding"
    null = {"mean": centre, "low": centre - 0.12, "high": centre + 0.12, "how": "planted uniform routing"}
    interval = {"low": plain(values - 0.05), "high": plain(values + 0.05), "level": 0.95, "how": "delete-one-block jackknife"}
    return {
        "measure": told["name"], "values": plain(values), "axes": [axis(a, SIZES[a]) for a in axes], "unit": told["unit"],
        "null": null if sampled else {"reason": "coordinates have no null"},
        "interval": interval if sampled else {"reason": "see trustworthiness"}, "caveats": [told["caveat"]],
        "facts": {} if sampled else {"trustworthiness": 0.94}, "tokens": 4096, "prompts": PROMPTS,
        "provenance": {"key": key_of(question), "checkpoints": [{"id": c} for c in question["checkpoints"]], "source": told["source"]},
    }  # fmt: skip


def key_of(question: dict[str, Any]) -> str:
    return "-".join([question["measure"], *(c.replace("/", ".") for c in question["checkpoints"]), *map(str, question["knobs"].values())])


def checkpoint(run: str, router: str | None, step: int, **more: Any) -> dict[str, Any]:
    return {
        "id": f"{run}/step-{step:05d}", "run": run, "step": step, "source": f"data/checkpoints/{run}/step-{step:05d}", "revision": None,
        "architecture": "moe_geometry_lab", "router": router, "dense": False, "layers": LAYERS, "moe_layers": LAYERS, "experts": EXPERTS,
        "top_k": 2, "soft": False, "model": 64, "hidden": 64, "dtype": "float16", "parameters": 592_000, "memory_bytes": 2_400_000,
        "fingerprint": f"sha256{run}{step}", "adapter": "fused", "verified": False, "error": None,
    } | more  # fmt: skip


CHECKPOINTS = [
    checkpoint(run, router, step, **more)
    for run, router, more in (
        ("aux", "softmax_aux", {}), ("free", "loss_free", {}), ("kmeans", "kmeans", {}), ("none", "unbalanced", {}),
        ("soft", "soft", {"soft": True, "top_k": 8}), ("dense", None, {"dense": True, "experts": 0, "top_k": 0, "moe_layers": 0}),
    )
    for step in (0, 500, 2000)
]  # fmt: skip
SETS = [
    {"name": "four-tasks", "digest": "d", "prompts": PROMPTS, "categories": dict.fromkeys(CATEGORIES, 6), "shipped": True, "characters": 9000},
    {"name": "mine", "digest": "e", "prompts": 3, "categories": {}, "shipped": False, "characters": 90},
]


def problem(status: int, title: str, detail: str, **more: Any) -> JSONResponse:
    body = {"type": "about:blank", "title": title, "status": status, "detail": detail} | more
    return JSONResponse(body, status, media_type="application/problem+json")


def create_fake(everything_stored: bool = False) -> FastAPI:
    """With `everything_stored` no question needs a job; otherwise each is asked first, and `slow` ones take a moment."""
    app, jobs = FastAPI(), {}
    stored: dict[str, dict[str, Any]] = {}
    app.state.jobs, app.state.stored, app.state.closed = jobs, stored, asyncio.Event()

    @app.get("/api/v1/health")
    async def health() -> dict[str, Any]:
        return {"status": "ok", "device": "cpu", "store": "/tmp/store", "schema": 1, "worker": "idle", "version": "0.1.0"}

    @app.get("/api/v1/checkpoints")
    async def checkpoints() -> dict[str, Any]:
        return {"checkpoints": CHECKPOINTS}

    @app.post("/api/v1/checkpoints")
    async def register(body: dict[str, Any]) -> Any:
        return problem(422, "not a checkpoint", f"{body['source']} has no config.json.")

    @app.get("/api/v1/prompts")
    async def prompts() -> dict[str, Any]:
        return {"prompts": SETS}

    @app.get("/api/v1/prompts/{name}")
    async def rows(name: str) -> dict[str, Any]:
        return SETS[0] | {"rows": [{"id": f"p{i:02d}", "text": f"Prompt {i}", "category": CATEGORIES[i * 4 // PROMPTS]} for i in range(PROMPTS)]}

    @app.get("/api/v1/measures")
    async def measures() -> dict[str, Any]:
        return {"measures": MEASURES}

    @app.get("/api/v1/jobs")
    async def listed() -> dict[str, Any]:
        return {"jobs": list(jobs.values())[::-1]}

    @app.post("/api/v1/questions")
    async def ask(question: dict[str, Any]) -> Any:
        name, checkpoints = question["measure"], question["checkpoints"]
        if name not in {m["name"] for m in MEASURES}:
            return problem(422, "unknown measure", f"No measure {name}.", known=[m["name"] for m in MEASURES])
        if any(c.startswith("dense") for c in checkpoints):
            return problem(422, "no experts", f"{checkpoints[0]} is dense: it has no experts to ask about.")
        if everything_stored or key_of(question) in stored:
            return answer(question)
        if question.get("only_stored"):
            return problem(404, "not asked yet", "The store does not hold this answer.", cost={"passes": 1, "tokens": 4096, "seconds": 3.0, "memory_bytes": 2e6})
        job = {"id": f"j{len(jobs)}", "key": key_of(question), "measure": name, "checkpoints": checkpoints, "prompts": question["prompts"], "state": "waiting",
               "stage": "", "fraction": 0.0, "eta_seconds": None, "message": None, "created": "2026-11-29T14:00:00", "started": None, "finished": None}  # fmt: skip
        jobs[job["id"]] = job
        app.state.task = asyncio.create_task(work(job, question))
        return JSONResponse({"job": job["id"], "key": job["key"], "events": f"/api/v1/jobs/{job['id']}/events"}, 202)

    async def work(job: dict[str, Any], question: dict[str, Any]) -> None:
        for layer in range(LAYERS):
            job |= {"state": "running", "stage": f"layer {layer + 1} of {LAYERS}", "fraction": (layer + 1) / LAYERS, "eta_seconds": 2.0}
            jobs[job["id"]] = job
            await asyncio.sleep(0.3)
        stored[job["key"]] = question
        job |= {"state": "done", "finished": "2026-11-29T14:01:00"}

    @app.get("/api/v1/jobs/{name}/events")
    async def events(name: str) -> StreamingResponse:
        async def stream() -> Any:
            try:
                while True:
                    job = jobs.get(name) or {"id": name, "state": "running", "fraction": 0.5, "stage": "layer 1 of 2"}
                    kind = "progress" if job["state"] in ("waiting", "running") else job["state"]
                    yield f"id: 1\nevent: {kind}\ndata: {json.dumps(job)}\n\n"
                    if kind != "progress":
                        return
                    await asyncio.sleep(0.2)
            finally:
                app.state.closed.set()

        return StreamingResponse(stream(), media_type="text/event-stream")

    @app.get("/api/v1/questions/{key}")
    async def by_key(key: str) -> Any:
        name, first, *_ = key.split("-s")[0].split("-") + [""]
        return answer({"measure": name, "checkpoints": ["aux/step-02000", "free/step-02000"], "knobs": {}, "prompts": "four-tasks"})

    @app.post("/api/v1/prompts/preview")
    async def preview(request: Request) -> Any:
        size = 0
        async for chunk in request.stream():
            size += len(chunk)
        return {
            "name": "mine.csv", "format": "csv", "rows": 3, "good": 1, "mended": 1, "refused": 1, "received": size, "categories": {"code": 2},
            "problems": [{"row": 2, "field": "id", "severity": "mended", "message": "no id: named “row-2”"}, {"row": 3, "field": "text", "severity": "refused", "message": "text is empty"}],
            "preview": [{"row": 1, "id": "a", "text": "Hello", "category": "code", "state": "good"}, {"row": 2, "id": "row-2", "text": "Ho", "category": "code", "state": "mended"},
                        {"row": 3, "id": "c", "text": "", "category": "", "state": "refused"}],
        }  # fmt: skip

    @app.api_route("/api/{path:path}", methods=["GET", "POST", "DELETE"])
    async def unknown(path: str) -> JSONResponse:
        return problem(404, "not found", f"No route /api/{path}.")

    return app
