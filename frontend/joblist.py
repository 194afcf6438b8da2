"""The list of jobs, in the drawer and on its page: running, waiting, done, failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dash import html

from frontend import words
from frontend.attributes import hyphened
from frontend.state import Material

GROUPS = (
    ("Running", ("running",)),
    ("Waiting", ("waiting",)),
    ("Failed", ("failed",)),
    ("Done", ("done",)),
    ("Cancelled", ("cancelled",)),
)
MOST = 20


def chip(jobs: Sequence[Mapping[str, Any]]) -> list:
    """What the context bar's chip says."""
    active = [j for j in jobs if j["state"] in ("waiting", "running")]
    if not active:
        return [html.Span("no jobs", className="ink-3")]
    done = sum(float(j.get("fraction") or 0) for j in active) / len(active)
    count = f"{len(active)} job" + ("s" if len(active) > 1 else "")
    ring = html.Span(className="ring", style={"--done": f"{done * 100:.0f}%"}, **hyphened({"aria-hidden": "true"}))
    return [ring, html.Span(f"{count}, {done:.0%}", className="num")]


def listing(jobs: Sequence[Mapping[str, Any]], material: Material) -> list:
    """All groups that have a job, each at most twenty long."""
    parts: list = []
    for heading, states in GROUPS:
        inside = [j for j in jobs if j["state"] in states]
        if inside:
            parts.append(html.H3(f"{heading} · {len(inside)}" if len(inside) > 1 else heading))
            parts += [_job(j, material) for j in inside[:MOST]]
    return parts or [html.P("No job has run yet. Ask a panel for an answer and it shows here.", className="ink-2")]


def _job(job: Mapping[str, Any], material: Material) -> html.Div:
    measure = material.measure(job["measure"])
    title = (measure or {}).get("title") or job["measure"]
    names = " and ".join(words.checkpoint(material.checkpoint(c), c) for c in job["checkpoints"])
    active = job["state"] in ("waiting", "running")
    head: list = [
        html.B(title),
        html.Span(f"{names}" + (f" on {job['prompts']}" if job.get("prompts") else ""), className="ink-3 clip"),
        html.Span(className="grow"),
    ]
    if active:
        head.append(
            html.Button(
                "Cancel",
                type="button",
                className="textual",
                **hyphened({"data-act": "cancel-job", "data-job": job["id"], "aria-label": f"Cancel {title}, {names}"}),
            )
        )
    parts: list = [html.Div(head, className="row")]
    if active:
        parts.append(html.Div(job.get("stage") or "waiting for the worker", className="t-note ink-2"))
        parts.append(
            html.Progress(
                value=str(job.get("fraction") or 0),
                max="1",
                **hyphened({"aria-label": f"Progress of {title}, {names}"}),
            )
        )
        if job.get("eta_seconds"):
            parts.append(html.Div(f"about {words.seconds(float(job['eta_seconds']))} left", className="t-note ink-3"))
    elif job.get("message"):
        parts.append(html.Div(job["message"], className="t-note " + ("error" if job["state"] == "failed" else "ink-3")))
    else:
        parts.append(html.Div(_when(job), className="t-note ink-3"))
    return html.Div(parts, className=f"job is-{job['state']}", **hyphened({"data-job-state": job["state"]}))


def _when(job: Mapping[str, Any]) -> str:
    at = str(job.get("finished") or job.get("created") or "")
    tokens = job.get("tokens")
    ran = "" if tokens is None else f" · {tokens:,} tokens run" if tokens else " · no model run"
    return at[:19].replace("T", " ") + ran
