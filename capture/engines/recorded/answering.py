"""What a query says on the host while it is replayed: its `begin`, `interval` and `end` clauses, and rows of printf."""

from __future__ import annotations

from collections.abc import Sequence

from ...programs.execution import Export
from ...programs.language.query import Query
from ...programs.language.running import HostSide
from ...segment.exports import Record, exports_of


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
        told = exports_of(self._maps, [record for record in records if not record[0].state])
        self.text += self._host.closed(told, t, state)

    def end(self) -> None:
        """The recording is over."""
        self.text += self._host.end()
