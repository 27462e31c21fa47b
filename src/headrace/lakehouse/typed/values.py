"""Batches of a typed table: records with columns of their values, and those that have none, with the reason."""

import pyarrow as pa
import pyarrow.compute as pc

from headrace.lakehouse.typed.decoder import Decoding
from headrace.lakehouse.write.columns import Decoded, conflict, grown, widened
from headrace.lakehouse.write.table import COLUMNS, DEAD_COLUMNS


class Values:
    """Decodes the values of one range."""

    def __init__(self, decoding: Decoding, columns: pa.Schema) -> None:
        """`columns`: those that the table has of values."""
        self._decoder = decoding.decoder(columns)
        self.columns = columns
        """Those of the table, and behind them those that were found since."""

    def split(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Records with columns of their values, and the others with the reason. A record without a value has nulls."""
        values = batch.column("value")
        present = values.is_valid()
        decoded = self._decoded(values.filter(present) if values.null_count else values)
        found = decoded.columns
        places = pc.indices_nonzero(present).to_pylist() if decoded.reasons else []
        reasons = {places[row]: why for row, why in decoded.reasons.items()}
        if values.null_count:
            behind = pc.subtract(pc.cumulative_sum(present.cast(pa.int64())), 1)
            found = found.take(pc.if_else(present, behind, pa.scalar(None, pa.int64())))
        self.columns = grown(self.columns, pa.schema(list(found.type)))
        parts = widened(found, self.columns).flatten() if len(self.columns) else []
        whole = pa.RecordBatch.from_arrays([*batch.columns, *parts], schema=pa.schema([*COLUMNS, *self.columns]))
        if not reasons:
            return whole, _none()
        bad = pa.array([row in reasons for row in range(batch.num_rows)])
        dead = batch.filter(bad)
        told = pa.array([reasons[row] for row in sorted(reasons)], pa.string())
        return whole.filter(pc.invert(bad)), pa.RecordBatch.from_arrays([*dead.columns, told], schema=DEAD_COLUMNS)

    def _decoded(self, values: pa.Array) -> Decoded:
        decoded = self._decoder.decode(values)
        against = conflict(self.columns, pa.schema(list(decoded.columns.type)))
        if against is None:
            return decoded
        nothing = pa.array([{}] * len(values), pa.struct([]))
        return Decoded(nothing, dict.fromkeys(range(len(values)), against))


def _none() -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=DEAD_COLUMNS)
