"""What all screens share: which trace, and which part of it is looked at."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from .times import duration, moment


@dataclass(frozen=True)
class Selection:
    """What every screen follows. None: all. interval: device time [begin, end) in ns."""

    interval: tuple[int, int] | None = None
    worker: int | None = None
    task_class: str | None = None
    request: int | None = None

    def with_(self, **changes: object) -> Selection:
        """The same with other values."""
        return replace(self, **changes)  # type: ignore[arg-type]

    @property
    def is_all(self) -> bool:
        """Whether nothing is selected."""
        return self == Selection()

    def describe(self, t_zero: int) -> str:
        """In one line, for people; times since `t_zero`."""
        parts = []
        if self.interval is not None:
            begin, end = self.interval
            step = max(10 ** (len(str(end - begin)) - 4), 1)
            parts.append(f"{moment(begin - t_zero, step)} + {duration(end - begin)}")
        if self.worker is not None:
            parts.append(f"worker {self.worker}")
        if self.task_class is not None:
            parts.append(f"class {self.task_class}")
        if self.request is not None:
            parts.append(f"request {self.request}")
        return " · ".join(parts) or "whole trace"


@dataclass(frozen=True)
class TraceInfo:
    """The row of view `trace` that the screens need. Times are device times in ns, None without events."""

    name: str
    state: str
    engine: str
    clock: str
    epoch_ns: int
    t_begin: int | None
    t_end: int | None
    events: int
    end_reason: str | None
    pid: int
    """Process of the engine; 0 where it is not known"""
    notes: tuple[str, ...]

    @property
    def t_zero(self) -> int:
        """Times are shown since this device time: the first event's."""
        return self.t_begin or 0

    @property
    def recording(self) -> bool:
        """Whether it grows."""
        return self.state == "recording"


@dataclass(frozen=True)
class Source:
    """What is browsed: a trace, a live segment, or (a trace that is being recorded) both."""

    trace: Path | None = None
    segment: Path | None = None

    def live(self, segment: Path) -> Source:
        """The same, with the segment that its engine has now."""
        return Source(self.trace, segment)

    @property
    def title(self) -> str:
        """File name of the trace, else of the segment."""
        path = self.trace or self.segment
        return path.name if path else ""
