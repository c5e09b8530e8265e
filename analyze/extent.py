"""From when to when a trace tells of anything: also where raw rows stopped, or were retired, and summaries remain."""

from __future__ import annotations

import pyarrow.compute as pc

from ..store import tables
from ..store.reader import Trace
from .inputs import Inputs
from .window import Window

_LASTING = (tables.INTERVALS.name, tables.COVERAGE.name)
_MADE = ("tasks", "waits")


def extent(inputs: Inputs) -> tuple[int, int] | None:
    """Device times [begin, end) in ns of events, of what was made of them, of coverage and of maps; None without any.

    Of a trace that is being recorded tasks and waits count as far as they are sealed: no more than that is read.
    """
    trace = inputs.trace
    times = [t for t in (inputs.span(), _recorded(trace)) if t is not None]
    for name in (*_MADE, *_LASTING, *trace.maps):
        after = 1 if name in _MADE else 0
        parts = trace.parts(name)
        times += [(p.t_min, p.t_max + after) for p in parts if p.t_min is not None and p.t_max is not None]
    for name in (*_LASTING, *trace.maps):
        rows = inputs.tail(name)
        if rows.num_rows:
            first, last = pc.min(rows["t_begin"]).as_py(), pc.max(rows["t_end"]).as_py()
            times += [(first, last)] if first is not None and last is not None else []
    return (min(t for t, _ in times), max(t for _, t in times)) if times else None


def _recorded(trace: Trace) -> tuple[int, int] | None:
    """The moment of its end, where that is known."""
    t = (trace.manifest["end"] or {}).get("t")
    return (t, t + 1) if type(t) is int else None


def ends_of(inputs: Inputs, window: Window) -> tuple[int | None, int | None]:
    """Begin and end of what is seen through a window, in ns: its own, else those of the events; None without any.

    Where it lies beyond all events, those of all that the trace tells of.
    """
    begin, end = _within(window, inputs.span())
    if begin is not None and end is not None and end <= begin:
        begin, end = _within(window, extent(inputs))
    return begin, end


def _within(window: Window, span: tuple[int, int] | None) -> tuple[int | None, int | None]:
    first, last = span or (None, None)
    return (first if window.begin is None else window.begin), (last if window.end is None else window.end)
