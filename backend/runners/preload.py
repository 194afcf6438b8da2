"""Importing this imports what workers run: the process they are forked from does it, once for all of them."""

from __future__ import annotations

import importlib

from analysis.measure import measures

ROOMS = ("edits", "evaluation", "passes", "prunes", "sentences", "traced")

importlib.import_module("transformers")
for room in ROOMS:
    importlib.import_module(f"backend.runners.{room}")
measures()
