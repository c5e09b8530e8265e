"""The one line that a capture shows while it records."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from .progress import Progress

_UNITS = ("", "k", "M", "G", "T")


def short(value: float, unit: str = "") -> str:
    """1234567 → '1.23 M'; three digits, a unit prefix of 1000."""
    step = 0
    while abs(value) >= 999.5 and step < len(_UNITS) - 1:
        value, step = value / 1000, step + 1
    digits = f"{value:.0f}" if step == 0 and value == int(value) else f"{value:.3g}"
    return f"{digits} {_UNITS[step]}{unit}".rstrip()


def lasting(ns: int) -> str:
    """14200000000 → '14.2 s', 1620 → '1.62 µs'."""
    size, unit = next(((s, u) for s, u in ((10**9, "s"), (10**6, "ms"), (10**3, "µs")) if ns >= 0.9995 * s), (1, "ns"))
    return f"{ns / size:.3g} {unit}" if ns < 1000 * size else f"{ns // size:,} {unit}"


class LiveLine:
    """On a terminal the line is redrawn in place; elsewhere it is printed every ten seconds."""

    def __init__(self, name: str, out: TextIO | None = None) -> None:
        self.name, self.out = name, out or sys.stderr
        self._redraw = self.out.isatty()
        self._printed = time.monotonic()

    def __call__(self, p: Progress) -> None:
        text = (
            f"recording {self.name} · {p.seconds:.1f} s · {short(p.rows)} rows · {short(p.rows_per_s)} rows/s · "
            f"{short(p.bytes, 'B')} · lost {short(p.lost)} ({p.loss_share:.2%}) · "
            f"behind {short(p.backlog_rows)} rows · to seal {short(p.sealing_lag_rows)}"
        )
        if p.stopped:
            text += f" · raw rows stopped: {p.stopped}"
        if self._redraw:
            print(f"\r\x1b[K{text}", end="", file=self.out, flush=True)
        elif time.monotonic() - self._printed > 10:
            self._printed = time.monotonic()
            print(text, file=self.out, flush=True)

    def close(self) -> None:
        if self._redraw:
            print("\r\x1b[K", end="", file=self.out, flush=True)
