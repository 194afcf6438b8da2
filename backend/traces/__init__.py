"""Traces without a model: routes and counts made elsewhere, read, checked and kept as checkpoints of a kind."""

from backend.traces.formats import formats, read
from backend.traces.importing import Traces
from backend.traces.options import Options
from backend.traces.trace import Trace

__all__ = ["Options", "Trace", "Traces", "formats", "read"]
