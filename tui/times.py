"""Times, counts and shares as people read them: in few cells, never more exact than they are."""

from __future__ import annotations

_UNITS = ((1, "ns"), (1_000, "µs"), (1_000_000, "ms"), (1_000_000_000, "s"))


def duration(ns: float | None) -> str:
    """`1.23 µs`, `45.6 ms`, `789 s`: three digits; `–` where it is not known."""
    if ns is None:
        return "–"
    size, unit = next(((s, u) for s, u in reversed(_UNITS) if abs(ns) >= s), _UNITS[0])
    value = ns / size
    if size == 1:
        return f"{value:.0f} {unit}"
    return (
        f"{value:.2f} {unit}"
        if abs(value) < 9.995
        else f"{value:.1f} {unit}"
        if abs(value) < 99.95
        else (f"{value:,.0f} {unit}")
    )


def moment(ns: int | None, step: int = 1) -> str:
    """A time since the trace's begin, as exact as `step` ns: `12.345678 ms`, in seconds from 10 s on."""
    if ns is None:
        return "–"
    size, unit = (1_000_000_000, "s") if abs(ns) >= 10_000_000_000 else (1_000_000, "ms")
    digits = max(len(str(size)) - len(str(max(step, 1))), 0)
    # z: what is a little less than nothing is no -0.0.
    return f"{ns / size:z,.{digits}f} {unit}"


def count(n: float | None) -> str:
    """`12,345`, `1.23 M` from a million on; `–` where it is not known."""
    if n is None:
        return "–"
    for size, unit in ((10**12, "T"), (10**9, "G"), (10**6, "M")):
        if abs(n) >= size:
            return f"{n / size:.2f} {unit}"
    return f"{n:,.0f}"


def share(part: float | None, whole: float = 1.0) -> str:
    """A percentage, rounded down: 100 % only where nothing is missing; `–` where it is not known."""
    if part is None or not whole:
        return "–"
    tenths = int(part / whole * 1000 + 1e-9)
    return f"{tenths // 10} %" if tenths % 10 == 0 else f"{tenths / 10:.1f} %"


def task(generation: int | None) -> str:
    """A task generation as iteration:index."""
    return "–" if generation is None else f"{generation >> 32}:{generation & 0xFFFF_FFFF}"


def request(number: int | None) -> str:
    """A request as an event names it: a generation, a set, or nothing."""
    if number is None or number == 0:
        return ""
    if number == 0xFFFF_FFFF:
        return "unknown"
    return f"set {number & 0x7FFF_FFFF}" if number & 0x8000_0000 else str(number)
