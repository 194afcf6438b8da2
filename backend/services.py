"""What a running backend is made of, opened together and closed together; API and command line hold the same."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from analysis.measure import measures
from backend.answer import Answering
from backend.checkpoints import Checkpoints
from backend.jobs import Jobs
from backend.live import LiveRuns
from backend.prompts import Prompts
from backend.question import tracing_code
from backend.runners import Runner
from backend.runners.local import LocalRunner
from backend.settings import Settings
from backend.store import Store
from backend.traces import Traces


@dataclass(frozen=True)
class Services:
    """The parts, each knowing only those before it."""

    settings: Settings
    store: Store
    checkpoints: Checkpoints
    prompts: Prompts
    traces: Traces
    runner: Runner
    answering: Answering
    jobs: Jobs
    live: LiveRuns


@contextlib.contextmanager
def open_services(settings: Settings, runner: Runner | None = None) -> Iterator[Services]:
    """Open the store and start the runner, unless one is given; on leaving, stop both and give the store back.

    Raises:
        StoreBusy: Another process holds the store; the text names it.
        StoreNewer: The store was written by a later version.
    """
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(Store.open(settings.store))
        if runner is None:
            runner = LocalRunner(
                settings.store, settings.device, settings.memory_budget, eager=True, paging=settings.paging
            )
        stack.callback(runner.close)
        checkpoints, prompts = Checkpoints(settings, store), Prompts(settings, store)
        answering = Answering(store, runner, settings.memory_budget, checkpoints.bring, settings.paging)
        jobs = Jobs(answering, store)
        stack.callback(jobs.close)
        _warm(checkpoints)
        traces = Traces(settings, store, checkpoints, prompts)
        yield Services(settings, store, checkpoints, prompts, traces, runner, answering, jobs, LiveRuns(settings))


def _warm(checkpoints: Checkpoints) -> None:
    """Do at the start what the first question would wait for: import measures, read headers, digest code."""
    measures()
    tracing_code()
    checkpoints.list()
