"""A stretch of device time, and which parts and rows of a stream lie in it.

What lasts lies in every window that it overlaps. A part whose times are not known is never left out, nor is a row.
"""

from __future__ import annotations

from dataclasses import dataclass

_EVER = (-(1 << 63), (1 << 63) - 1)

_SPANS = {
    "events": ("t", "t"),
    "tasks": ("coalesce(start, ready, assign, complete)", "coalesce(complete, start, ready, assign)"),
    "waits": ("coalesce(t_begin, t_end)", "CASE WHEN open THEN NULL ELSE coalesce(t_end, t_begin) END"),
    "tiles": ("tile << level", "((tile + span) << level) - 1"),
    "intervals": ("t_begin", "t_end"),
    "coverage": ("t_begin", "t_end"),
    "loss": ("t_begin", "t_end"),
}
_MAP_SPAN = ("t_begin", "t_end")
"""When a row begins and when it ends, in SQL; null: no one knows, or not yet."""


@dataclass(frozen=True)
class Window:
    """[begin, end) of device time in ns; None: from the first, to the last."""

    begin: int | None = None
    end: int | None = None

    @property
    def last(self) -> int | None:
        """The last ns inside."""
        return None if self.end is None else self.end - 1

    def overlaps(self, first: int | None, last: int | None) -> bool:
        """Whether what lasts from `first` to `last`, inclusive, has a moment inside; true where either is unknown."""
        if first is None or last is None:
            return True
        return (self.end is None or first < self.end) and (self.begin is None or last >= self.begin)

    def within(self, other: Window) -> Window:
        """What both have in common."""
        begins = [w.begin for w in (self, other) if w.begin is not None]
        ends = [w.end for w in (self, other) if w.end is not None]
        return Window(max(begins, default=None), min(ends, default=None))

    def condition(self, stream: str) -> str:
        """A WHERE clause for the stream's rows in the window; nothing for the whole and for what has no time."""
        if not is_timed(stream) or self == WHOLE:
            return ""
        begin, end = _SPANS.get(stream, _MAP_SPAN)
        tests = []
        # A plain comparison is what prunes row groups; of events t is never null.
        every = "({})" if stream == "events" else "coalesce({}, true)"
        if self.end is not None:
            tests.append(every.format(f"{begin} < {_literal(self.end)}"))
        if self.begin is not None:
            tests.append(every.format(f"{end} >= {_literal(self.begin)}"))
        return f" WHERE {' AND '.join(tests)}"


WHOLE = Window()


def is_timed(stream: str) -> bool:
    """Whether a window leaves rows of the stream out."""
    return stream in _SPANS or stream.startswith("maps.")


def _literal(value: int) -> str:
    return f"({min(max(value, _EVER[0]), _EVER[1])})"
