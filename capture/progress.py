"""How a recording goes, as the live line shows it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """A snapshot for the live line. Rates are per second since the last snapshot."""

    seconds: float
    rows: int
    rows_per_s: float
    bytes: int
    lost: int
    loss_share: float
    backlog_rows: int
    sealing_lag_rows: int
    stopped: str | None
    """why raw rows are being dropped: disk_budget, disk_full or None"""
    dropped: int
    """rows dropped for that reason, known when the recording has ended; they are among `lost`"""


@dataclass(frozen=True)
class Rolled:
    """What a rolling recording let go of, and what was marked. retired: rows; early: of those, before their time."""

    retired: int
    early: int
    marks: int
    firings: int
