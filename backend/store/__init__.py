"""The store: a DuckDB catalogue that one process owns, and content-addressed files beside it."""

from backend.store.address import Serving, serving
from backend.store.arrays import Arrays, Artifact
from backend.store.database import StoreBusy, StoreNewer
from backend.store.schema import SCHEMA
from backend.store.store import Store

__all__ = ["SCHEMA", "Arrays", "Artifact", "Serving", "Store", "StoreBusy", "StoreNewer", "serving"]
