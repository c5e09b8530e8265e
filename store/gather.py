"""Rows of one stream on their way to the spool, gathered to batches worth a write."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

BATCH_ROWS = 1 << 15
"""Rows that make a batch of the spool: a write of 2 MB, and little to lose."""


class Gathered:
    """Batches of one stream that are not in the spool yet."""

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        self.rows = 0

    def add(self, batch: pa.RecordBatch) -> bool:
        """Keep a batch; True when there are enough rows for a write."""
        if batch.num_rows:
            self._batches.append(batch)
            self.rows += batch.num_rows
        return self.rows >= BATCH_ROWS

    def joined(self) -> pa.RecordBatch | None:
        """All rows as one batch; None when there are none. They stay until `clear`."""
        if len(self._batches) > 1:
            (whole,) = pa.Table.from_batches(self._batches).combine_chunks().to_batches()
            self._batches = [whole]
        return self._batches[0] if self._batches else None

    def pieces(self) -> Iterator[pa.RecordBatch]:
        """All rows in batches of BATCH_ROWS to twice as many, so that no more is refused than there is no room for.

        What was yielded is let go when the next is asked for; the rest stays.
        """
        while (whole := self.joined()) is not None:
            count = -(-self.rows // max(1, self.rows // BATCH_ROWS))
            yield whole.slice(0, count)
            rest = whole.slice(count)
            self._batches = [rest] if rest.num_rows else []
            self.rows = rest.num_rows

    def clear(self) -> None:
        """Let go of the rows: they are in the spool, or counted as lost."""
        self._batches = []
        self.rows = 0
