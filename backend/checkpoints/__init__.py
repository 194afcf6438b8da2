"""Checkpoints: which there are, what their headers say, and how one is loaded."""

from backend.checkpoints.catalogue import Checkpoints
from backend.checkpoints.identity import Checkpoint
from backend.checkpoints.loading import load, load_tokenizer
from backend.checkpoints.scanning import scan
from backend.checkpoints.source import inspect

__all__ = ["Checkpoint", "Checkpoints", "inspect", "load", "load_tokenizer", "scan"]
