"""Triggers: programs of a rolling recording whose rows say that something has happened."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from ..store.errors import Usage
from . import attaching
from .marks import Around, Marks
from .programs.program import Program

_EVER = (1 << 63) - 1


def check(program: Program) -> None:
    """Whether a program can be a trigger. Raises Usage for one that never emits, Rejected as `attaching.verify`."""
    if not attaching.verify(program).emits:
        raise Usage(f"cannot watch for {program.name}", "it emits nothing, so it never fires", "let it say emit()")


class Triggers:
    """Looks for rows that triggers have emitted, and marks them."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._around: dict[str, Around] = {}
        self._lives: tuple[tuple[int, str, int, int, int], ...] = ()

    def watch(self, name: str, around: Around) -> None:
        """The program of that name, as soon as it is attached, is a trigger; so is one that takes its place."""
        self._around[name] = around

    def follow(self, programs: Iterable[Mapping[str, Any]]) -> None:
        """Rows of `programs` have changed: in which slot each trigger is, and from when to when."""
        self._lives = tuple(
            (p["program"], p["name"], p["slot"], p.get("attached") or 0, p.get("detached") or _EVER)
            for p in programs
            if p["name"] in self._around
        )

    def saw(self, rows: pa.RecordBatch) -> None:
        """Ring rows have come."""
        self._marks.saw(rows)
        if not self._lives:
            return
        t = rows["t"].to_numpy().astype(np.int64)
        by = rows["by"].to_numpy()
        for program, name, slot, since, until in self._lives:
            times = np.sort(t[(by >> np.uint32(slot) & np.uint32(1) == 1) & (t >= since) & (t < until)])
            if not len(times):
                continue
            around = self._around[name]
            # What would not run into one another stays apart, however many come in one batch.
            for some in np.split(times, np.flatnonzero(np.diff(times) > around.before + around.after + 1) + 1):
                self._marks.fired(program, name, int(some[0]), int(some[-1]), len(some), around)
