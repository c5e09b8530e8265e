"""Of which stretch of time the answers of a query are that ran before the recording of it began, or goes on after it.

What its maps held is told late, and what was told before the recording is gone: coverage alone would count events that
no answer is of. So events count where there are exports of them, and where the answers are of is said with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .live_line import lasting
from .segment.map_ring import Span

Counts = tuple[int, Sequence[int]]
"""until when, ns; counts of events, eligible first"""


class Reach:
    """began: when the recording began, device ns. first, last: of what the exports so far are."""

    def __init__(self, began: int) -> None:
        self._began = began
        self._first: int | None = None
        self._last = 0
        self._said = ""

    def saw(self, spans: Iterable[Span]) -> None:
        """Exports have been added up."""
        for span in spans:
            if not span.state:
                self._first = span.t_begin if self._first is None else min(self._first, span.t_begin)
                self._last = max(self._last, span.t_end)

    def split(self, counts: Iterable[Counts], *, all_told: bool) -> tuple[list[Counts], list[Counts]]:
        """Counts of what the exports are of, and those that wait for exports. all_told: none will come."""
        if self._first is None:
            return [], [] if all_told else list(counts)
        mine = [(at, c) for at, c in counts if at > self._first]
        if all_told:
            return mine, []
        return [(at, c) for at, c in mine if at <= self._last], [(at, c) for at, c in mine if at > self._last]

    def said(self) -> str:
        """That answers are of before the recording, once as long as all of them are, and once when some are."""
        if self._first is None or self._first >= self._began:
            return ""
        kind = "are of" if self._last <= self._began else "begin at"
        if kind == self._said:
            return ""
        self._said = kind
        until = f" to {lasting(self._last)}" if kind == "are of" else ""
        return f"the answers {kind} {lasting(self._first)}{until}; this recording began at {lasting(self._began)}"

    def untold(self, waiting: Iterable[Counts]) -> str:
        """What an engine that goes on has counted and not told when the recording ends; empty: nothing."""
        if not any(c[0] for _, c in waiting):
            return ""
        since = "" if self._first is None else f" since {lasting(self._last)}"
        return f"what it has counted{since} is not told yet, and in no answer"
