"""Rows of events on their way from the rings into a trace: which are of this recording, and the last cut."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ..store.trace import TraceWriter
from .accounts import I64, Accounts
from .triggers import Triggers


class EventRows:
    """raw: every row is recorded; else those that programs emitted, as theirs alone.

    t_seen: the latest device time of a row, ns. left_out: rows taken that are not of this recording.
    """

    def __init__(self, writer: TraceWriter, accounts: Accounts, triggers: Triggers, *, raw: bool) -> None:
        self._writer, self._accounts, self._triggers, self._raw = writer, accounts, triggers, raw
        self._held: list[pa.RecordBatch] | None = None
        self.t_seen = self.left_out = 0

    @property
    def held(self) -> bool:
        return self._held is not None

    def take(self, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        self._accounts.saw(rows)
        self.t_seen = max(self.t_seen, int(rows["t"].to_numpy().max()))
        # Triggers first: what they pin must not have left the window because of rows that came with them.
        self._triggers.saw(rows)
        if not self._raw:
            rows = self._emitted(rows)
        if self._held is not None:
            self._held.append(rows)
        elif rows.num_rows:
            self._writer.append("events", rows)

    def hold(self) -> None:
        """The last cut has been asked for: of the rows that come now, some are of after it."""
        self._held = []

    def keep_all(self) -> None:
        """No cut comes any more: what is held is of this recording."""
        held, self._held = self._held or [], None
        for rows in held:
            self._writer.append("events", rows)

    def keep(self, closed_to: I64) -> None:
        """The cut has come. closed_to: by worker, the seq at which its last interval was closed."""
        held, self._held = self._held or [], None
        for rows in held:
            closed = rows["seq"].to_numpy() < closed_to[rows["worker"].to_numpy()]
            self.left_out += int(np.count_nonzero(~closed))
            self._writer.append("events", rows.filter(pa.array(closed)))

    def _emitted(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """What an earlier recorder left in the ring is not of this recording."""
        by = rows["by"].to_numpy()
        emitted = by > 1
        self.left_out += int(np.count_nonzero(~emitted))
        at, field = rows.schema.get_field_index("by"), rows.schema.field("by")
        return rows.set_column(at, field, pa.array(by & ~np.uint32(1))).filter(pa.array(emitted))
