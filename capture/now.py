"""A look at a live segment, as values to show. Reads; never writes to it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .segment.reader import SegmentReader
from .segment.standing import Standing, standing
from .waiting import INDEX, waiting


@dataclass(frozen=True)
class Look:
    """One moment of an engine; its last, of one that has ended.

    workers: rank, worker, role, what, target, seen, wanted, counts, waited_ns (None: runs), task, fired.
    """

    name: str
    standing: Standing
    step: int
    silent_s: float
    workers: tuple[dict[str, Any], ...]
    cycles: tuple[tuple[int, ...], ...]

    @property
    def live(self) -> bool:
        """Whether the engine has not ended."""
        return self.standing.live

    @property
    def waiting(self) -> int:
        """How many workers wait."""
        return sum(w["waited_ns"] is not None for w in self.workers)


def now(path: Path) -> Look:
    """What every worker of the segment at `path` does. Raises MegascopeError for one that cannot be read."""
    with SegmentReader.open(path) as segment:
        # How it stands first: an engine that has ended by then says nothing new.
        stands, found, status = standing(segment), waiting(segment), segment.status()
        deps, classes = _names(segment, "dependencies"), _names(segment, "task_classes")
        of_task = _column(segment, "static_tasks", "index", "task_class")
        roles = _column(segment, "workers", "worker", "role")
        name = segment.layout.name
    said = ("runs", "waits") if stands.live else ("ran", "waited")
    workers = tuple(_worker(row, found.t_now, said, deps, classes, of_task, roles) for row in found.rows.to_pylist())
    silent = max(0.0, (time.time_ns() - status.heartbeat_ns) / 1e9)
    return Look(name, stands, status.step, silent, workers, tuple(map(tuple, found.cycles)))


def _worker(
    row: dict[str, Any],
    t_now: int,
    said: tuple[str, str],
    deps: dict[int, str],
    classes: dict[int, str],
    of_task: dict[int, int],
    roles: dict[int, str],
) -> dict[str, Any]:
    """said: what one does that runs, and one that waits."""
    out = {k: row[k] for k in ("rank", "worker", "fired")} | {"role": roles.get(row["worker"], "")}
    if not row["waiting"]:
        blank = dict.fromkeys(("target", "seen", "wanted", "counts", "task"), "")
        return out | blank | {"what": said[0], "waited_ns": None}
    target, seen, wanted, counts, task = "work", "", "", "", ""
    if row["dep"]:
        target = deps.get(row["dep"], f"dependency {row['dep']}")
        seen, wanted = str(row["seen"]), str(row["wanted"])
        counts = f"{seen}/{wanted}"
    if row["task"]:
        iteration, index = row["task"] >> 32, row["task"] & INDEX
        task = f"{classes.get(of_task.get(index, -1), 'task')} {iteration}:{index}"
    out |= {"target": target, "seen": seen, "wanted": wanted, "counts": counts, "task": task}
    return out | {"what": f"{said[1]} for {target}", "waited_ns": max(0, t_now - row["t"])}


def _names(segment: SegmentReader, table: str) -> dict[int, str]:
    return _column(segment, table, "id", "name")


def _column(segment: SegmentReader, table: str, key: str, value: str) -> dict[int, Any]:
    keys: list[Any] = segment.tables[table][key].to_pylist()
    return dict(zip(keys, segment.tables[table][value].to_pylist(), strict=True))
