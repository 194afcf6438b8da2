"""The recorder as a callback of transformers' Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers.trainer_callback import TrainerCallback

from backend.recorder.recorder import GeometryRecorder


class GeometryCallback(TrainerCallback):
    """`Trainer(..., callbacks=[GeometryCallback(every=100, folder="runs/mine")])`; arguments as the recorder's."""

    def __init__(
        self,
        every: int = 100,
        folder: str | Path = "runs/live",
        to: str | None = None,
        geometry: bool = False,
    ) -> None:
        self._wanted: dict[str, Any] = {"every": every, "folder": folder, "to": to, "geometry": geometry}
        self.recorder: GeometryRecorder | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **more: Any) -> None:
        """The model is there from now on, and so is the step a resumed run goes on from."""
        self.recorder = GeometryRecorder(
            model, first=state.global_step, rank=getattr(args, "process_index", 0), **self._wanted
        )

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """After each optimiser step, however many passes it took."""
        if self.recorder:
            self.recorder.step()

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Hooks off."""
        if self.recorder:
            self.recorder.close()
