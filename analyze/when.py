"""Moments as people write them: device time in ns, time since the begin, or the clock on the wall in UTC."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from ..store.errors import Refused, Usage

_UNITS = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "min": 60 * 10**9,
    "h": 3600 * 10**9,
}
_SINCE = re.compile(r"\+(?P<number>\d+(?:\.\d+)?)(?P<unit>[a-zµ]+)")
_NS = re.compile(r"-?\d{1,19}")
_ISO = re.compile(r"(?P<second>\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?)(?:\.(?P<fraction>\d{1,9}))?Z?")


@dataclass(frozen=True)
class Moment:
    """Device time in ns; `error_ns` is not 0 for a time by the host's clock, and None where it is not bounded."""

    t: int
    error_ns: int | None = 0


def moment(text: str, begin: int | None, fits: Sequence[Any]) -> Moment:
    """The moment that `text` names: `1200300` (ns), `+1.5s` since `begin`, or `2026-03-01T12:00:00.5Z`.

    begin: device time of the trace's first event, if it has one; fits: the manifest's clock fits. Raises Usage for a
    text of another form, Refused for a time that this trace cannot tell.
    """
    what = f"cannot look at {text}"
    if _NS.fullmatch(text):
        return Moment(_checked(int(text), what))
    if (match := _SINCE.fullmatch(text)) and match["unit"] in _UNITS:
        if begin is None:
            raise Refused(what, "the trace has no events to count from", "give a time in ns")
        whole, _, fraction = match["number"].partition(".")
        unit = _UNITS[match["unit"]]
        # In integers: a double holds no nanoseconds of an hour.
        return Moment(_checked(begin + int(whole) * unit + int(fraction or 0) * unit // 10 ** len(fraction), what))
    if match := _ISO.fullmatch(text):
        try:
            second = datetime.fromisoformat(match["second"]).replace(tzinfo=UTC)
        except ValueError as error:
            raise Usage(what, str(error), "write 2026-03-01T12:00:00.5Z, in UTC") from None
        host = int(second.timestamp()) * 10**9 + int((match["fraction"] or "").ljust(9, "0"))
        if not fits:
            raise Refused(what, "the trace's clock was not fitted to the host's", "give device time, or +1.5s")
        return device_time(host, fits)
    raise Usage(what, "it is no time", "write ns of device time, +1.5s since the begin, or 2026-03-01T12:00:00Z")


def device_time(host: int, fits: Sequence[Any]) -> Moment:
    """Device time at which the host's clock read `host` (both ns), by the fits on either side of it.

    How far the clocks moved against each other between the two is part of the error; outside the fits it is unknown.
    """
    points = sorted((int(f["host_ns"]), int(f["device_ns"]), int(f["error_ns"])) for f in fits)
    hosts = [p[0] for p in points]
    at = int(np.searchsorted(np.array(hosts, np.int64), host, "right"))
    if host < hosts[0] or host > hosts[-1]:
        near = points[0] if at == 0 else points[-1]
        return Moment(host - near[0] + near[1], None)
    after = points[min(at, len(points) - 1)]
    before = points[max(min(at, len(points) - 1) - 1, 0)]
    moved = (after[1] - after[0]) - (before[1] - before[0])
    part = (host - before[0]) / (after[0] - before[0]) if after[0] > before[0] else 0.0
    return Moment(host - before[0] + before[1] + round(moved * part), max(before[2], after[2]) + abs(moved) + 1)


def _checked(t: int, what: str) -> int:
    if abs(t) > 1 << 62:
        raise Usage(what, "it is beyond any device's time", "give a time in ns")
    return t
