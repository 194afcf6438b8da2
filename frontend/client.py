"""What the pages know of the backend: one async client over its API."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from frontend.answer import Answer, decode_arrow, decode_json

ARROW = "application/vnd.apache.arrow.stream"
IDLE_SECONDS = 2.0
"""How long an unused connection is kept. A server closes one after 5 s or more (uvicorn's own time): a request sent at
that moment would be lost, and httpx's own 5 s made it happen."""


class Refusal(Exception):
    """The backend said no, in a sentence (`detail`), perhaps with what it does know."""

    def __init__(self, status: int, title: str, detail: str, known: tuple[str, ...] = ()):
        super().__init__(detail)
        self.status, self.title, self.detail, self.known = status, title, detail, known


class Unreachable(Refusal):
    """Nobody answers at the backend's address."""


@dataclass(frozen=True)
class NotAsked:
    """The store does not hold this answer; what asking would cost, and why it was refused when last asked."""

    cost: Mapping[str, Any]
    refused: str = ""


@dataclass(frozen=True)
class Job:
    """A question under way."""

    id: str
    key: str
    state: str = "waiting"
    stage: str = ""
    fraction: float = 0.0


@dataclass(frozen=True)
class Question:
    """What a panel asks: a measure of one or two checkpoints on a prompt set."""

    measure: str
    checkpoints: tuple[str, ...]
    prompts: str | None
    knobs: Mapping[str, Any] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        """The question as the API takes it."""
        return {
            "measure": self.measure,
            "checkpoints": list(self.checkpoints),
            "prompts": self.prompts,
            "knobs": dict(self.knobs),
        }


class Client:
    """The backend's API as coroutines. Lists that every panel of a page needs are kept for a second."""

    def __init__(self, base_url: str, transport: httpx.AsyncBaseTransport | None = None):
        limits = httpx.Limits(max_connections=64, keepalive_expiry=IDLE_SECONDS)
        self._http = httpx.AsyncClient(
            base_url=f"{base_url}/api/v1", timeout=httpx.Timeout(60, connect=5), transport=transport, limits=limits
        )
        self._kept: dict[str, tuple[float, asyncio.Task]] = {}
        self.base_url = base_url

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def health(self) -> Mapping[str, Any]:
        """Device, store and worker of the backend."""
        return (await self._send("GET", "/health")).json()

    async def checkpoints(self) -> list[Mapping[str, Any]]:
        """All known checkpoints."""
        return await self._recent("checkpoints", lambda: self._list("/checkpoints", "checkpoints"))

    async def prompt_sets(self) -> list[Mapping[str, Any]]:
        """All prompt sets."""
        return await self._recent("prompts", lambda: self._list("/prompts", "prompts"))

    async def prompt_rows(self, name: str, limit: int = 50) -> Mapping[str, Any]:
        """One prompt set with its first rows."""
        return (await self._send("GET", f"/prompts/{name}", params={"limit": limit})).json()

    async def measures(self) -> list[Mapping[str, Any]]:
        """The catalogue of measures."""
        return await self._recent("measures", lambda: self._list("/measures", "measures"))

    async def jobs(self) -> list[Mapping[str, Any]]:
        """All jobs, newest first; never a second old, for a job that ends is not heard of twice."""
        return await self._list("/jobs", "jobs")

    async def experiments(self) -> list[Mapping[str, Any]]:
        """Published experiments as repeated here, with their rows."""
        return await self._list("/experiments", "experiments")

    async def live_runs(self) -> list[Mapping[str, Any]]:
        """Recorded training runs, the one heard of last first."""
        return await self._list("/live", "runs")

    async def live_run(self, name: str) -> Mapping[str, Any]:
        """A recorded run with a point for each recorded step."""
        return (await self._send("GET", f"/live/{name}")).json()

    async def edit(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Try an edit of a model, however long that takes."""
        return (await self._send("POST", "/edits", json=body, timeout=httpx.Timeout(None, connect=5))).json()

    async def prune(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Compare keep-lists of a model, however long that takes."""
        return (await self._send("POST", "/prunes", json=body, timeout=httpx.Timeout(None, connect=5))).json()

    async def stored_questions(self) -> list[Mapping[str, Any]]:
        """What the store can answer at once."""
        return await self._list("/questions", "questions")

    async def stored(self, question: Question, again: bool = False) -> Answer | NotAsked | Job:
        """The stored answer, the job that is making it, or what it would cost; starts nothing.

        A job that ends after the store was looked at and before the jobs were has left its answer there: it is looked
        up `again`. Without that a plate said "not asked" of what had just been answered, and nothing ever told it.
        """
        try:
            return await self._question(question.body() | {"only_stored": True})
        except Refusal as refusal:
            if refusal.status != 404 or not isinstance(refusal, _Cost):
                raise
            job = await self._job_of(question, refusal)
            if job and job["state"] == "done" and not again:
                return await self.stored(question, again=True)
            if job and job["state"] in ("waiting", "running"):
                return _job(job)
            said = job["message"] if job and job["state"] == "failed" and job.get("refused") else ""
            return NotAsked(refusal.cost, said or "")

    async def ask(self, question: Question, wait: float = 0.4) -> Answer | Job:
        """Ask for good: an answer if it comes within `wait` seconds, else the job that will bring it."""
        return await self._question(question.body() | {"wait": wait})

    async def answer(self, key: str) -> Answer:
        """A stored answer by its key."""
        return self._decode(await self._send("GET", f"/questions/{key}", headers={"accept": ARROW}))

    async def register(self, source: str, name: str | None = None) -> Mapping[str, Any]:
        """Register a checkpoint folder or hub id."""
        self._kept.pop("checkpoints", None)
        return (
            await self._send("POST", "/checkpoints", json={"source": source} | ({"name": name} if name else {}))
        ).json()

    async def register_run(self, sources: Sequence[str], name: str | None = None) -> Mapping[str, Any]:
        """Register the steps of a run: a folder of them, or `owner/name@revision` for each."""
        self._kept.pop("checkpoints", None)
        return (await self._send("POST", "/checkpoints/runs", json={"sources": list(sources), "name": name})).json()

    async def trace_formats(self) -> list[Mapping[str, Any]]:
        """The formats of routes and counts that can be imported, each with `name` and `title`."""
        return await self._recent("formats", lambda: self._list("/traces/formats", "formats"))

    async def unregister(self, checkpoint: str) -> None:
        """Forget a registered checkpoint; its files stay."""
        self._kept.pop("checkpoints", None)
        await self._send("DELETE", "/checkpoints", params={"id": checkpoint})

    async def delete_prompts(self, name: str) -> None:
        """Delete an uploaded prompt set."""
        self._kept.pop("prompts", None)
        await self._send("DELETE", f"/prompts/{name}")

    def forget(self) -> None:
        """Read every list anew, for instance after an upload."""
        self._kept.clear()

    async def _question(self, body: Mapping[str, Any]) -> Answer | Job:
        response = await self._send("POST", "/questions", json=body, headers={"accept": ARROW})
        if response.status_code == 202:
            told = response.json()
            return Job(told["job"], told.get("key", ""))
        return self._decode(response)

    async def _job_of(self, question: Question, cost: _Cost) -> Mapping[str, Any] | None:
        """The newest job of a question, whatever has become of it, as known after the store was looked at."""
        return next((j for j in await self.jobs() if (j["key"] == cost.key if cost.key else _same(j, question))), None)

    def _decode(self, response: httpx.Response) -> Answer:
        if response.headers.get("content-type", "").startswith(ARROW):
            return decode_arrow(response.content)
        return decode_json(response.json())

    async def _list(self, path: str, name: str) -> list[Mapping[str, Any]]:
        return (await self._send("GET", path)).json()[name]

    async def _recent(self, name: str, fetch: Callable[[], Awaitable], seconds: float = 1.0) -> Any:
        at, task = self._kept.get(name, (0.0, None))
        if task is None or time.monotonic() - at > seconds or (task.done() and (task.cancelled() or task.exception())):
            task = asyncio.ensure_future(fetch())
            self._kept[name] = (time.monotonic(), task)
        return await asyncio.shield(task)

    async def _send(self, method: str, path: str, **more: Any) -> httpx.Response:
        try:
            response = await self._http.request(method, path, **more)
        except httpx.TransportError as error:
            raise Unreachable(
                502, "backend unreachable", f"The backend at {self.base_url} does not answer ({type(error).__name__})."
            ) from error
        if response.is_error:
            raise _refusal(response)
        return response


class _Cost(Refusal):
    def __init__(self, detail: str, cost: Mapping[str, Any], key: str):
        super().__init__(404, "not asked yet", detail)
        self.cost, self.key = cost, key


def _refusal(response: httpx.Response) -> Refusal:
    try:
        problem = response.json()
    except ValueError:
        return Refusal(
            response.status_code, "refused", f"The backend answered {response.status_code} {response.reason_phrase}."
        )
    detail = problem.get("detail") or problem.get("title") or "refused"
    if "cost" in problem:
        return _Cost(str(detail), problem["cost"] or {}, problem.get("key", ""))
    return Refusal(
        response.status_code,
        str(problem.get("title", "refused")),
        str(detail),
        tuple(map(str, problem.get("known", ()))),
    )


def _job(told: Mapping[str, Any]) -> Job:
    return Job(told["id"], told["key"], told["state"], told.get("stage") or "", told.get("fraction") or 0.0)


def _same(job: Mapping[str, Any], question: Question) -> bool:
    return (job["measure"], tuple(job["checkpoints"]), job["prompts"]) == (
        question.measure,
        question.checkpoints,
        question.prompts,
    )


async def first_request(app: Any) -> None:
    """Ask an ASGI application of our own for "/" once, in this process."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://start.local") as http:
        (await http.get("/")).raise_for_status()
