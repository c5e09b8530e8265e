"""The last rows of a recording may be dropped for the disk budget too: they are counted like the others."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from megascope.store.tables import RING_ROW
from megascope.store.trace import Trace, TraceWriter


def test_rows_gathered_when_the_recording_ends_are_counted(tmp_path: Path) -> None:
    writer = TraceWriter.create(tmp_path / "a.mscope", {}, {}, max_bytes=1 << 20)
    n = 1_000
    columns = [pa.array(range(n) if c.bits > 8 else [3] * n, c.arrow) for c in RING_ROW]
    batch = pa.record_batch(columns, schema=RING_ROW.schema)
    sent = 0
    for i in range(200):
        writer.append("events", batch)
        sent += n
        if i < 199:
            writer.flush()
    writer.finish("ended")
    with Trace.open(tmp_path / "a.mscope") as trace:
        kept = sum(p.rows for p in trace.parts("events"))
        lost = [r["count"] for p in trace.parts("loss") for r in pq.read_table(p.path).to_pylist()]
    assert 0 < kept < sent
    assert kept + sum(lost) == sent
