"""Watch a training run: a hook for any loop, and a callback for transformers' Trainer.

    recorder = GeometryRecorder(model, every=100, folder="runs/mine")
    ...
    recorder.step()  # after each optimiser step

Needs no service package. What is written merges over processes; `to="http://127.0.0.1:8000"` also sends it to a running
backend, whose page `live` follows the run.
"""

from backend.recorder.recorder import GeometryRecorder

__all__ = ["GeometryRecorder"]
