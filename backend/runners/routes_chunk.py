"""The routing of a shard, token by token, as one Parquet file: a page of tokens needs no other pass."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from torch import Tensor

from analysis.slots import RouteBatch

SCHEMA = pa.schema(
    [
        ("prompt", pa.dictionary(pa.int32(), pa.string())),
        ("position", pa.int32()),
        ("role", pa.uint8()),
        ("token", pa.int32()),
        ("start", pa.int32()),
        ("end", pa.int32()),
        ("layer", pa.dictionary(pa.int32(), pa.string())),
        ("slot", pa.uint8()),
        ("expert", pa.uint16()),
        ("weight", pa.float32()),
    ]
)


class RoutesChunk:
    """Collects batches; columnar from the start, never an object per token."""

    def __init__(self) -> None:
        self._tables: list[pa.Table] = []

    def add(self, batch: RouteBatch) -> None:
        """One row per layer, token and slot; `layer` is the decoder's label, `role` 0 prompt, 1 generated."""
        layers, tokens, slots = batch.indices.shape
        keys = batch.keys

        def per_token(values: Tensor) -> np.ndarray:
            column = np.asarray(values.cpu())
            return np.broadcast_to(column[None, :, None], (layers, tokens, slots)).ravel()

        def along(values: np.ndarray, axis: int) -> np.ndarray:
            shape = [-1 if a == axis else 1 for a in range(3)]
            return np.broadcast_to(values.reshape(shape), (layers, tokens, slots)).ravel()

        columns = [
            pa.DictionaryArray.from_arrays(
                per_token(keys.prompt).astype(np.int32), pa.array(batch.prompts.ids, pa.string())
            ),
            per_token(keys.position),
            per_token(keys.role),
            per_token(keys.token),
            per_token(keys.span[:, 0]),
            per_token(keys.span[:, 1]),
            pa.DictionaryArray.from_arrays(
                along(np.arange(layers, dtype=np.int32), 0), pa.array(batch.shape.layers, pa.string())
            ),
            along(np.arange(slots), 2),
            batch.indices.cpu().numpy().ravel(),
            batch.weights.float().cpu().numpy().ravel(),
        ]
        arrays = [pa.array(column).cast(field.type) for column, field in zip(columns, SCHEMA, strict=True)]
        self._tables.append(pa.Table.from_arrays(arrays, schema=SCHEMA))

    def parquet(self) -> bytes:
        """All batches as one zstd-compressed file."""
        table = pa.concat_tables(self._tables).unify_dictionaries() if self._tables else SCHEMA.empty_table()
        sink = pa.BufferOutputStream()
        pyarrow.parquet.write_table(table, sink, compression="zstd")
        return sink.getvalue().to_pybytes()
