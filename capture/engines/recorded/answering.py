"""What a query says on the host while it is replayed: its `begin`, `interval` and `end` clauses, and rows of printf."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...programs import histogram
from ...programs.execution import Export
from ...programs.language.query import Query
from ...programs.language.running import HostSide
from ...programs.maps import Map, MapKind
from ...segment import map_ring
from ...segment.exports import Record

ALL = -1
"""Worker of what was merged over several."""


class Answering:
    """The host's side of one query. text: what it has printed so far. keeps: indexes of its maps that hold state."""

    def __init__(self, query: Query, begin: int) -> None:
        self._maps = query.program.maps
        self._host = HostSide(query)
        self.text = self._host.begin(begin)
        state = {a.map for a in query.answers if a.what == "state"}
        self.keeps = [i for i, m in enumerate(self._maps) if m.name in state]

    def closed(self, records: Sequence[Record], state: Sequence[Export], t: int) -> None:
        """An epoch that ends at t has closed. records: what its maps held. state: what those in `keeps` hold now."""
        told = [_export(self._maps[span.map], *record) for record in records if not (span := record[0]).state]
        self.text += self._host.closed(told, t, state)

    def end(self) -> None:
        """The recording is over."""
        self.text += self._host.end()


def _export(declared: Map, span: map_ring.Span, n: int, body: bytes) -> Export:
    """A record as the execution gave it, but for what was merged."""
    e = map_ring.entries(declared, n, body)
    values = e.values
    if declared.kind == MapKind.HIST:
        words = np.zeros((n, histogram.WORDS), "<u8")
        words[:, : histogram.HEAD] = e.head
        words[np.repeat(np.arange(n), e.buckets.astype(np.int64)), histogram.HEAD + e.bucket] = e.count
        values = words.view(np.uint8)
    return Export(span.map, ALL if span.worker is None else span.worker, e.keys, values, span.refused)
