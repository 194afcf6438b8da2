"""A run that trains in this process moves the page that follows it, without a click."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect
from transformers import Trainer, TrainerCallback, TrainingArguments

from backend.recorder.trainer import GeometryCallback
from tests.backend.test_recorder import Tokens, model_of
from tests.end_to_end.conftest import Services
from tests.end_to_end.panels import ready
from tests.end_to_end.test_accessible import violations

pytestmark = pytest.mark.browser

FIGURES = "document.querySelectorAll('main .js-plotly-plot').length"


class Pause(TrainerCallback):
    """Holds a training after a step until it is told to go on."""

    def __init__(self, step: int) -> None:
        self.step, self.over = step, threading.Event()

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if state.global_step == self.step:
            self.over.wait(120)


def train(folder: Path, services: Services, steps: int, *more: TrainerCallback) -> None:
    """A few steps of a tiny model, each recorded and sent."""
    arguments = TrainingArguments(
        output_dir=str(folder.parent / "out"),
        max_steps=steps,
        per_device_train_batch_size=2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
        logging_strategy="no",
        dataloader_pin_memory=False,
    )
    callback = GeometryCallback(every=1, folder=folder, to=services.api.removesuffix("/api/v1"), geometry=True)
    Trainer(model_of(), arguments, train_dataset=Tokens(), callbacks=[callback, *more]).train()


def recorded(services: Services, run: str) -> None:
    """The run has been heard of."""
    until = time.monotonic() + 60
    while all(told["name"] != run for told in httpx.get(f"{services.api}/live", timeout=30).json()["runs"]):
        assert time.monotonic() < until, f"no record of {run} has arrived"
        time.sleep(0.1)


def test_the_page_moves_while_a_model_trains_and_another_run_stands_beside(
    page: Page, services: Services, tmp_path: Path
) -> None:
    pause = Pause(2)
    training = threading.Thread(target=train, args=(tmp_path / "first-run", services, 5, pause))
    training.start()
    try:
        recorded(services, "first-run")
        ready(page, "/live")
        expect(page.locator("main")).to_contain_text("first-run at step 2", timeout=20_000)
        page.wait_for_function(f"{FIGURES} === 7")
    finally:
        pause.over.set()
        training.join()
    expect(page.locator("main")).to_contain_text("first-run at step 5", timeout=20_000)
    train(tmp_path / "second-run", services, 3)
    ready(page, "/live?k.live.run=first-run")
    page.get_by_role("row", name="second-run").get_by_role("link", name="beside it").click()
    expect(page.locator("main")).to_contain_text("second-run at step 3", timeout=20_000)
    expect(page.locator("main")).to_contain_text("OLMo-core: load imbalance")
    page.wait_for_function(f"{FIGURES} === 7")
    assert not violations(page)
    for run in ("first-run", "second-run"):
        httpx.delete(f"{services.api}/live/{run}", timeout=30).raise_for_status()
