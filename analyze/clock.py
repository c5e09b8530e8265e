"""Device time to UTC, from the manifest's piecewise clock fits.

A fit says that at `device_ns` the host's clock read `host_ns`, give or take `error_ns`. Between two fits the offset is
interpolated; how far it moved between them is added to the error, which bounds any clock that drifts one way in
between. Outside the fits the nearest offset is used and the error is not known.

SQL looks offsets up by position, so the fits are resampled to cells of equal width. What the resampling moves is
added to the cell's error: the bound stays a bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..store.errors import Refused

CELLS = 1024
"""At most so many cells of the lookup. A list of this length costs SQL little more than one of two."""

_LIMIT = 1 << 61
"""Times beyond 73 years in nanoseconds are no times, and would overflow a sum in SQL."""


@dataclass(frozen=True)
class Clock:
    """`offsets[i]` and `offsets[i + 1]` (ns, relative to `base`) stand at the ends of cell i, `errors[i]` in it.

    Cell i begins at `begin + i * width` ns of device time; `end` is the device time of the last fit.
    """

    begin: int
    end: int
    width: int
    base: int
    offsets: list[int]
    errors: list[int]


def clock_from_fits(fits: Sequence[Any]) -> Clock | None:
    """The lookup for a manifest's `clock.fits`; None without fits.

    Raises Refused when a fit is not three integers within ±2^61 or its error is negative.
    """
    if not fits:
        return None
    try:
        points = sorted((int(f["device_ns"]), int(f["host_ns"]), int(f["error_ns"])) for f in fits)
    except (KeyError, TypeError, ValueError) as why:
        raise Refused("cannot read the trace's clock", f"a fit is malformed ({why})", "run megascope check") from None
    if any(abs(value) > _LIMIT for point in points for value in point) or any(error < 0 for _, _, error in points):
        raise Refused("cannot read the trace's clock", "a fit is out of range", "run megascope check")
    # Of several fits at one instant the tightest is kept: interpolation needs distinct times.
    points = [p for i, p in enumerate(points) if i == 0 or p[0] != points[i - 1][0]]
    begin, end = points[0][0], points[-1][0]
    base = points[0][1] - begin
    device = np.array([d - begin for d, _, _ in points], dtype=np.float64)
    offset = np.array([h - d - base for d, h, _ in points], dtype=np.float64)
    error = np.array([e for _, _, e in points], dtype=np.float64)
    if len(points) == 1:
        return Clock(begin, end, 1, base, [0, 0], [int(error[0])])

    width = -(-(end - begin) // min(CELLS, (len(points) - 1) * 8))
    cells = -(-(end - begin) // width)
    grid = np.arange(cells + 1, dtype=np.float64) * width
    resampled = np.interp(grid, device, offset)
    moved = np.abs(np.interp(device, grid, resampled) - offset)
    between = np.maximum(error[:-1], error[1:]) + np.abs(np.diff(offset))
    first = np.clip(np.searchsorted(device, grid[:-1], "right") - 1, 0, len(between) - 1)
    last = np.clip(np.searchsorted(device, grid[1:], "left"), first + 1, len(between))
    # Both polylines are straight between knots, so their distance is largest at one.
    errors = [
        int(np.ceil(between[lo:hi].max() + moved[lo : hi + 1].max())) + 1 for lo, hi in zip(first, last, strict=True)
    ]
    return Clock(begin, end, width, base, [round(x) for x in resampled.tolist()], errors)
