"""The monitors of the host engine: what is done between two batches of the simulation.

A pass takes what the workers have queued, lets the programs see it, writes what they emit, and shows the words that a
reader looks at. Between two passes, requests are carried out: intervals are cut there, so that each event runs under
the programs of one moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ...segment.words import Worker
from . import state
from .account import HOOKS, Account, Moment, keys_of
from .programs import Programs
from .sinks import Sink
from .state import I64, Sim

U32 = NDArray[np.uint32]
PUBLISH_S = 0.005
"""Rows wait no longer than this (real) to be published; readers are promised 10 ms."""
NAP_S, LONG_NAP_S = 0.0005, 0.02
PATIENCE_S = 3.0
"""After a stop is asked for: how long to wait for a drainer that makes no room before the rest is given up."""


class Patience:
    """How long to wait for a drainer: without end while the run goes on, PATIENCE_S without progress after a stop."""

    def __init__(self, stop: Callable[[], bool]) -> None:
        self._stop = stop
        self._since: float | None = None
        self._nap = NAP_S

    def stopping(self) -> bool:
        if self._since is None and self._stop():
            self._since = time.monotonic()
        return self._since is not None

    def nap(self) -> None:
        """Let the drainer work; longer and longer while it makes no room."""
        time.sleep(self._nap)
        self._nap = min(2 * self._nap, LONG_NAP_S)

    def renew(self) -> None:
        self._nap = NAP_S
        if self._since is not None:
            self._since = time.monotonic()

    def over(self) -> bool:
        return self.stopping() and time.monotonic() - (self._since or 0.0) > PATIENCE_S


def lost_by_hook(sim: Sim) -> I64:
    """[workers, HOOKS] events that found their worker's queue full, so far."""
    return sim.worker[:, state.LOST : state.LOST + HOOKS]


class Monitors:
    """All monitors of a run. step: the iteration that goes on, for those who look.

    passed: virtual time that has gone by, also where nothing happens in it: what waits has waited until then.
    """

    def __init__(self, sim: Sim, account: Account, programs: Programs, sink: Sink, patience: Patience) -> None:
        self._sim, self._account, self._programs, self._sink, self._patience = sim, account, programs, sink, patience
        self._monitors = len(sim.fill)
        self._rank = [int(account.rank[account.monitor == m][0]) for m in range(self._monitors)]
        self._published = time.monotonic()
        self.step, self.passed = -1, 0
        self.asked = False
        """the hooks to record have been asked for"""

    @property
    def late(self) -> bool:
        """What is staged has waited long enough."""
        return time.monotonic() - self._published > PUBLISH_S

    def publish(self) -> None:
        """A pass of every monitor."""
        for monitor in np.nonzero(self._sim.fill)[0].tolist():
            self._drain(monitor)
        self._sim.misc[state.FULLEST] = 0
        self._programs.flush(self._now(), self._sink)
        self._show()
        self.serve()
        self._published = time.monotonic()

    def close_epoch(self) -> None:
        """The next event is of a later epoch: end every worker's epoch and interval at that epoch's begin."""
        self.publish()
        sim, epoch_ns = self._sim, self._account.epoch_ns
        epoch = int(sim.memory[sim.misc[state.HEAP_AT]]) // epoch_ns
        self._programs.close_epoch(self._now(epoch * epoch_ns))
        self._programs.show(self._sink)
        self._cut(self._now(epoch * epoch_ns), patient=True)
        sim.misc[state.NEXT_EPOCH] = (epoch + 1) * epoch_ns

    def end(self) -> None:
        """The run ends: everything is taken, told and closed, as far as a drainer makes room for it."""
        self.publish()
        now = self._now(int(self._sim.misc[state.T_NOW]) + 1)
        self._programs.end(now, self._sink)
        self._cut(now, patient=True)
        waited = time.monotonic()
        while not self._programs.flush(now, self._sink) and time.monotonic() - waited < PATIENCE_S:
            self._show()
            self._patience.nap()

    def serve(self) -> None:
        """Take up a new mask, a request and feedback; what was fired before is cut off first."""
        sink, misc = self._sink, self._sim.misc
        wanted = sink.wanted()
        if wanted is not None:
            mask, commit = wanted
            # A segment begins with commit 0, which asks for nothing; a drainer may have asked before this first look.
            self.asked |= commit != 0
            now = self._now()
            self._cut(now, patient=False)
            self._account.recorder.sync(now.lost)
            self._account.recorder.mask = mask
            misc[state.MASK] = mask | self._programs.mask
            sink.latched(mask, commit)
        if self._programs.serve(sink, self._now(), lambda now: self._cut(now, patient=False)):
            misc[state.MASK] = self._account.recorder.mask | self._programs.mask
            self._programs.flush(self._now(), sink)
        fed = sink.feedback()
        if fed is not None:
            for cell in fed[1]:
                self._programs.feed(*cell)
            sink.fed(fed[0])

    def _now(self, t: int | None = None) -> Moment:
        sim = self._sim
        t = int(sim.misc[state.T_NOW]) if t is None else t
        return Moment(t, sim.worker[:, state.SEQ], lost_by_hook(sim), self._monitors)

    def _drain(self, monitor: int) -> None:
        rows = self._sim.stage[monitor, : self._sim.fill[monitor]].view(np.uint64)
        keys = keys_of(rows)
        self._account.took(keys)
        by = self._recorded(keys)
        self._programs.run(rows, self._rank[monitor], by)
        some = by != 0
        if not some.all():
            rows, keys, by = rows[some], keys[some], by[some]
        done, sink = 0, self._sink
        while done < len(rows):
            n = min(sink.room(monitor), len(rows) - done)
            if n > 0:
                sink.write(monitor, rows[done : done + n], by[done : done + n])
                self._account.told(keys[done : done + n], by[done : done + n], written=True)
                done += n
                self._patience.renew()
            elif sink.waits and not self._patience.over():
                self._show(waits=True)
                self._patience.nap()
            else:
                sink.lose(monitor, len(rows) - done)
                self._account.told(keys[done:], by[done:], written=False)
                done = len(rows)
        self._sim.fill[monitor] = 0

    def _recorded(self, keys: I64) -> U32:
        """The recorder's bit of each row."""
        mask = self._account.recorder.mask
        if not self._programs.mask & ~mask:
            return np.full(len(keys), bool(mask), np.uint32)
        of_hook: U32 = np.array([mask >> h & 1 for h in range(HOOKS)], np.uint32)
        by: U32 = of_hook[keys & (HOOKS - 1)]
        return by

    def _show(self, *, waits: bool = False) -> None:
        sim = self._sim
        worker = sim.worker
        out = np.zeros((len(worker), Worker.WORDS), np.int64)
        waiting = worker[:, state.WAIT_DEP] >= 0
        for word, column in (
            (Worker.NOW_T, state.WAIT_T),
            (Worker.NOW_TASK, state.WAIT_TASK),
            (Worker.NOW_DEP, state.WAIT_DEP),
            (Worker.NOW_SEEN_WANTED, state.WAIT_SEEN),
        ):
            out[:, word] = np.where(waiting, worker[:, column], 0)
            out[:, Worker.NOW_CHECK] ^= out[:, word]
        out[:, Worker.FIRED] = worker[:, state.SEQ]
        out[:, Worker.DEQUEUED] = self._account.dequeued
        out[:, Worker.LOST] = lost_by_hook(sim).sum(axis=1)
        t = int(sim.misc[state.T_NOW])
        self._sink.show(out, max(t, self.passed), max(self.step, 0), t // self._account.epoch_ns, waits=waits)

    def _cut(self, now: Moment, *, patient: bool) -> None:
        """Close intervals. Where records have no room, the interval stays open and spans what comes next too."""
        account, sink, patience = self._account, self._sink, self._patience
        if account.is_idle(now):
            for monitor in range(self._monitors):
                account.cut(monitor, now)
            return
        for monitor in range(self._monitors):
            records = account.records(monitor, now)
            while not (kept := sink.keep(monitor, records)):
                if not patient or not sink.waits or patience.over():
                    break
                self._show(waits=True)
                patience.nap()
            if kept:
                if patient:
                    patience.renew()
                account.cut(monitor, now)
