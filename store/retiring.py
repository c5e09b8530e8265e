"""Retiring what a rolling recording does not keep: the manifest forgets it first, and only then the files go.

A recorder that dies in between leaves files that no manifest names: litter, which repair removes. Whoever has the trace
open sees it as it was, or is told that a part is gone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import retention
from .ledger import Ledger
from .manifest import Manifest
from .retention import Pins, Plan, Step
from .spool import SpoolFile
from .tables import EVENTS

_NEVER, _MOST = -(1 << 62), 1 << 62
_GRAIN_MOST_NS = 10 * 10**9
_GRAIN_LEAST_S = 0.1
"""No parts are made faster than that, however short the window is in the engine's time."""


class Retirer:
    """Keeps the last `keep_ns` of device time, and what is pinned. Its methods may be called by any thread.

    What is pinned stays until the end. Pinned parts may take three eighths of `max_bytes`: then nothing
    more is pinned.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        ledger: Ledger,
        keep_ns: int,
        max_bytes: int | None,
        used: Callable[[], int],
        unsealed: Callable[[], Sequence[SpoolFile]] = tuple,
    ) -> None:
        """`used`: bytes that the trace takes, or will have taken when everything is derived.

        `unsealed`: the spool files of events that wait to be sealed, in the order of their numbers.
        """
        self._folder, self._manifest, self._ledger, self._used = folder, manifest, ledger, used
        self._unsealed = unsealed
        self.keep_ns = keep_ns
        self._grain_ns = max(min(keep_ns // 16, _GRAIN_MOST_NS), keep_ns // 256, 1)
        self._grain_bytes = None if max_bytes is None else max(max_bytes // 32, 1)
        # Below where the gate of raw rows closes (7/8), and where it opens again (3/4).
        self._limit = None if max_bytes is None else max_bytes * 5 // 8
        self._pinned_most = None if max_bytes is None else max_bytes * 3 // 8
        self._deciding, self._stepping = threading.Lock(), threading.Lock()
        self._pins = Pins()
        self._horizon = self._newest = _NEVER
        self._high: dict[int, int] = {}
        self._left: list[str] = []
        self.pinned_to: int | None = None
        """Device time after which nothing is pinned any more, once the budget of pinned bytes has been spent."""
        self.underived = False
        """Derivation has failed for good: do not wait for it."""

    @property
    def is_tight(self) -> bool:
        """Whether the trace takes so much of its budget that the oldest is to go before its time."""
        return self._limit is not None and self._used() > self._limit

    @property
    def newest(self) -> int | None:
        """The latest device time that rows have had, those from an impossible future left out; None before any."""
        return None if self._newest == _NEVER else self._newest

    def ends_part(self, size: int, age_s: float, span_ns: int) -> bool:
        """Whether a spool file of so many bytes, begun so long ago, whose rows span so much device time is long enough.

        Parts are short, so that little more than the window is kept, and a small budget holds many.
        """
        if self._grain_bytes is not None and size >= self._grain_bytes:
            return True
        return age_s >= _GRAIN_LEAST_S and span_ns >= self._grain_ns

    def saw(self, t: NDArray[np.int64] | NDArray[np.uint64]) -> None:
        """Rows have come with these device times."""
        # One row with a broken time must not move the window past everything: it does not have the median on its side.
        until = max(self._newest, int(np.partition(t, len(t) // 2)[len(t) // 2])) + self._grain_ns
        self._newest = min(max(self._newest, int(t[t <= until].max(initial=0))), _MOST)

    def pin(self, begin: int, end: int) -> tuple[int, int] | None:
        """Never retire rows of [begin, end] (device ns, inclusive) that are still there or are yet to come.

        Returns the stretch that is kept, which begins later where the window had moved on; None when nothing is, as
        the budget of pinned bytes is spent or there are too many stretches.
        """
        with self._deciding:
            begin = max(begin, self._horizon)
            if self.pinned_to is not None or begin > end:
                return None
            if len(self._pins) >= retention.PINS_MOST and not self._pins.touches(begin, end):
                return None
            self._pins.add(begin, end)
            return begin, end

    def is_over(self, low: int, high: int) -> bool:
        """Whether rows of [low, high] (device ns) have left the window, and none of them is pinned."""
        with self._deciding:
            if self.newest is None:
                return False
            self._horizon = max(self._horizon, self._newest - self.keep_ns)
            return high < self._horizon and not self._pins.touches(low, high)

    def forget_unsealed(self, content: dict[str, Any], number: int, low: int, high: int, rows: int) -> None:
        """Count rows that are over before they were sealed, in a manifest's content."""
        with self._deciding:
            window, horizon = self._newest - self.keep_ns, self._horizon
        retention.forget_unsealed(content, number, low, high, rows, window, horizon)

    def step(self, lacking: int = 0) -> None:
        """Retire what is due, and decide what is over of that which is not sealed yet (see `is_over`).

        lacking: bytes that are to become free in any case, if anything is left that may go. Raises OSError: then it is
        to be tried again, and nothing has gone that still counts.
        """
        with self._stepping:
            self._unlink([])
            if self.newest is None:
                return
            # Before the manifest, which then knows which of them have become parts meanwhile.
            files = self._unsealed() if self._limit is not None else ()
            content = self._manifest.snapshot()
            known = retention.steps_of(content, underived=self.underived)
            steps = [self._sane(s) for s in known]
            coming = [self._sane(s) for s in retention.underived(content, known)]
            sealed = content["spool_sealed"][EVENTS.name]
            coming += self._steps_of_spool([f for f in files if f.number > sealed])
            with self._deciding:
                plan, pins = self._plan(steps, coming, lacking), list(self._pins)
            if plan.retire:
                self._forget(plan, pins, steps)

    def finish(self) -> None:
        """Retire for the last time, and write down what is kept. Raises as `step`."""
        self.step()
        if self.newest is None:
            return
        with self._deciding:
            pins, last = list(self._pins), Plan((), frozenset(), self._horizon, 0)

        def change(m: dict[str, Any]) -> None:
            retention.forget(m, last, pins)

        self._manifest.commit(change)

    def _sane(self, step: Step) -> Step:
        """The step with a time in the far future taken for the present, or it would be kept for ever."""
        high = self._high.get(step.number)
        if high is None:
            high = step.high if step.high <= self._newest + self.keep_ns else self._newest
            self._high[step.number] = high
        return Step(step.number, min(step.low, high), high, step.rows, step.bytes)

    def _steps_of_spool(self, files: Sequence[SpoolFile]) -> Iterator[Step]:
        """Those that may go unsealed; not one with a time in the far future, which is sealed and seen then."""
        for f in files:
            if f.times is not None and f.times[1] <= self._newest + self.keep_ns:
                yield Step(f.number, *f.times, f.rows, f.on_disk)

    def _plan(self, steps: list[Step], coming: list[Step], lacking: int) -> Plan:
        excess = 0 if self._limit is None else max(self._used() - self._limit, lacking)
        window = self._newest - self.keep_ns
        plan = retention.plan(steps, self._pins, window, self._horizon, excess, coming)
        if self._pinned_most is not None and self.pinned_to is None and plan.pinned_bytes > self._pinned_most:
            self.pinned_to = self._newest
            self._pins.cut(self._newest)
            plan = retention.plan(steps, self._pins, window, self._horizon, excess, coming)
        self._horizon = plan.horizon
        return plan

    def _forget(self, plan: Plan, pins: list[tuple[int, int]], steps: list[Step]) -> None:
        doomed: list[str] = []

        def change(m: dict[str, Any]) -> None:
            doomed.extend(retention.forget(m, plan, pins))

        self._manifest.commit(change)
        self._unlink(doomed)
        self._ledger.add(-sum(s.bytes for s in steps if s.number in set(plan.retire)))
        for number in plan.retire:
            self._high.pop(number, None)

    def _unlink(self, doomed: list[str]) -> None:
        """Remove files that do not count any more, and those that could not be removed before."""
        left, self._left = [*self._left, *doomed], []
        for file in left:
            try:
                (self._folder / file).unlink(missing_ok=True)
            except OSError:
                self._left.append(file)
