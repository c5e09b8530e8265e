"""What the maps of an attached program held, on its way out: merged, within the budget, and never lost on the way.

When an epoch closes, its banks are added to those that have not been told yet. Where the map ring and the budget have
room, a map's banks of one monitor become records; otherwise they wait, and what is told later says that it spans
several epochs. Workers that lost nothing are told as one. A map that does not merge is told epoch by epoch and worker
by worker; of what waits then, no more than BACKLOG rings are kept, and the rest counts as refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ...programs.execution import Export
from ...programs.maps import Map, MapKind
from ...programs.merging import Rule, merge, rule_of
from ...programs.verdict import Verdict
from ...segment.map_ring import Span, encode
from ...segment.words import Summary
from ..arena import aggregates, is_shared
from .account import MOST_EPOCHS, Flow, Moment
from .state import I64

U8 = NDArray[np.uint8]
BACKLOG = 4
SHARED = -1
"""Stands for all workers of a rank, as in Export.worker."""
_COVERAGE = slice(0, Summary.FAULTED - Summary.ELIGIBLE + 1)
_MISSING = slice(Summary.THROTTLED - Summary.ELIGIBLE, Summary.FAULTED - Summary.ELIGIBLE + 1)


class MapSink(Protocol):
    """Where records go."""

    map_bytes: int
    """of one monitor's ring"""

    def keep_map(self, monitor: int, record: bytes) -> bool:
        """Put a record into a monitor's map ring; False: there is no room for it."""


class Telemetry:
    """How many bytes of exports an engine may tell: `rate` per second of device time (0: no limit), saved for 1 s."""

    def __init__(self, rate: int, t: int) -> None:
        self._rate, self._t, self._saved = rate, t, float(rate)

    def pass_time(self, t: int) -> None:
        """It is t ns now."""
        self._saved = min(self._saved + (t - self._t) * 1e-9 * self._rate, float(self._rate))
        self._t = t

    def spend(self) -> bool:
        """Whether a record may go out; one that is larger than what is left is owed."""
        return not self._rate or self._saved > 0

    def spent(self, size: int) -> None:
        self._saved -= size


class _Bank:
    """One map on one monitor (or one rank, if it is shared): what has not been told."""

    def __init__(self, index: int, declared: Map, rule: Rule | None, monitor: int, workers: I64, at: Moment) -> None:
        self.index, self.declared, self.rule, self.monitor, self.workers = index, declared, rule, monitor, workers
        self.t_begin = self.t_end = at.t
        self.base = np.zeros((len(workers), _COVERAGE.stop), np.int64)
        self.counts = self.base
        """as the last epoch closed"""
        self.unplaced = 0
        self.live: dict[int, tuple[U8, U8]] = {}
        self.refused: dict[int, int] = {}
        self.queue: deque[bytes] = deque()
        self.by_worker = declared.key is not None and any(m.name == "worker" for m in declared.key.members)

    def add(self, export: Export) -> None:
        """Another epoch of one worker."""
        worker, keys, values = export.worker, export.keys, export.values
        refused = self.refused.get(worker, 0) + export.refused
        if worker in self.live and self.rule is not None:
            old = self.live[worker]
            keys, values = merge(self.rule, np.concatenate([old[0], keys]), np.concatenate([old[1], values]))
            # One bank holds no more, however many epochs it lasts.
            refused += max(0, len(keys) - self.declared.max_entries)
            keys, values = keys[: self.declared.max_entries], values[: self.declared.max_entries]
        if len(keys):
            self.live[worker] = keys, values
        if refused:
            self.refused[worker] = refused

    def drop(self) -> None:
        """What is live cannot be kept: it counts as refused with the next that is."""
        for worker, (keys, _) in self.live.items():
            self.refused[worker] = self.refused.get(worker, 0) + len(keys)
        self.live = {}


class Exports:
    """Of one attached program, from when it was attached until the last of its maps has been told."""

    def __init__(self, verdict: Verdict, flow: Flow, monitor: I64, rank: I64, epoch_ns: int, at: Moment) -> None:
        self._program, self._flow, self._rank, self._epoch_ns = verdict.program, flow, rank, epoch_ns
        self._monitor, self._since = monitor, at.t
        self._banks: dict[tuple[int, int], _Bank] = {}
        for index, declared in enumerate(self._program.maps):
            if declared.kind == MapKind.FEEDBACK or declared.read_only:
                continue
            rule = rule_of(verdict, index)
            if is_shared(declared):
                places = {int(monitor[rank == r].min()): np.nonzero(rank == r)[0] for r in np.unique(rank)}
            else:
                places = {int(m): np.nonzero(monitor == m)[0] for m in np.unique(monitor)}
            for m, workers in places.items():
                self._banks[index, m] = _Bank(index, declared, rule, m, workers, at)

    def tells(self, index: int) -> bool:
        """Whether anything is told of a map."""
        return any(i == index for i, _ in self._banks)

    def add(self, exports: Iterable[Export], rank: int) -> None:
        """An epoch has closed for the workers of a rank (of all, for maps that are not shared)."""
        for export in exports:
            first = self._monitor[self._rank == rank].min() if export.worker == SHARED else self._monitor[export.worker]
            bank = self._banks.get((export.map, int(first)))
            if bank is not None and (len(export.keys) or export.refused):
                bank.add(export)

    def add_state(self, exports: Sequence[Export], rank: int, limit: int, now: Moment) -> None:
        """What stands in maps that are no aggregations, at the end; entries that are zero are left out."""
        for export in exports:
            some = (
                export.values.any(axis=1)
                if self._program.maps[export.map].indexed
                else np.ones(len(export.keys), np.bool_)
            )
            if not some.any():
                continue
            shared = export.worker == SHARED
            first = self._monitor[self._rank == rank].min() if shared else self._monitor[export.worker]
            bank = self._banks[export.map, int(first)]
            who = bank.workers if shared else np.array([export.worker])
            counts = self._flow.counts[who].sum(axis=(0, 1))[_COVERAGE]
            span = self._span(
                bank,
                None if shared else export.worker,
                len(who),
                counts,
                export.refused,
                self._since,
                now.t,
                state=True,
            )
            bank.queue += encode(span, bank.declared, export.keys[some], export.values[some], limit)

    def flush(self, sink: MapSink, telemetry: Telemetry | None) -> bool:
        """Tell what there is room for; whether all has been told. telemetry None: whatever it costs."""
        done = True
        for bank in self._banks.values():
            if aggregates(bank.declared) and bank.live and (bank.rule is None or not bank.queue):
                if sum(map(len, bank.queue)) > BACKLOG * sink.map_bytes:
                    bank.drop()
                else:
                    self._encode(bank, sink.map_bytes // 4)
            while bank.queue and (telemetry is None or telemetry.spend()):
                if not sink.keep_map(bank.monitor, bank.queue[0]):
                    break
                if telemetry is not None:
                    telemetry.spent(len(bank.queue[0]))
                bank.queue.popleft()
            done &= not bank.queue and not bank.live
        return done

    def _encode(self, bank: _Bank, limit: int) -> None:
        added = bank.counts - bank.base
        unplaced = np.zeros(_COVERAGE.stop, np.int64)
        unplaced[[0, Summary.LOST - Summary.ELIGIBLE]] = self._unplaced(bank) - bank.unplaced
        bank.unplaced = self._unplaced(bank)
        lossy = added[:, _MISSING].any(axis=1)
        parts: list[tuple[int | None, NDArray[np.bool_], U8, U8]] = []
        if SHARED in bank.live:
            parts.append((None, np.ones(len(bank.workers), np.bool_), *bank.live[SHARED]))
        else:
            alone = lossy | bank.by_worker | (bank.rule is None) | np.isin(bank.workers, list(bank.refused))
            for i in np.nonzero(alone)[0].tolist():
                worker = int(bank.workers[i])
                if worker in bank.live:
                    parts.append((worker, np.arange(len(alone)) == i, *bank.live[worker]))
            rest = [bank.live[w] for w in bank.workers[~alone].tolist() if w in bank.live]
            if rest and bank.rule is not None:
                one = merge(bank.rule, *(np.concatenate([r[i] for r in rest]) for i in (0, 1)))
                parts.append((None, ~alone, *one))
        for of, who, keys, values in parts:
            refused = bank.refused.get(SHARED if of is None else of, 0)
            coverage = added[who].sum(axis=0) + unplaced
            span = self._span(bank, of, int(who.sum()), coverage, refused, bank.t_begin, bank.t_end)
            bank.queue += encode(span, bank.declared, keys, values, limit)
        bank.live, bank.refused = {}, {}
        bank.base, bank.t_begin = bank.counts, bank.t_end

    def _unplaced(self, bank: _Bank) -> int:
        """Events lost so far by its rank's workers, of which nobody knows by which: they may be missing here."""
        return self._flow.unplaced.get(int(self._rank[bank.workers[0]]), 0)

    def _span(
        self,
        bank: _Bank,
        worker: int | None,
        workers: int,
        counts: I64,
        refused: int,
        begin: int,
        end: int,
        *,
        state: bool = False,
    ) -> Span:
        first = begin // self._epoch_ns
        epochs = min(max(1, -(-end // self._epoch_ns) - first), MOST_EPOCHS)
        eligible, observed, throttled, lost, faulted = map(int, counts)
        return Span(
            self._flow.program,
            bank.index,
            int(self._rank[bank.workers[0]]),
            worker,
            workers,
            first,
            epochs,
            begin,
            end,
            (eligible, observed, throttled, lost, faulted),
            refused,
            state,
        )

    def pass_epoch(self, now: Moment) -> None:
        """An epoch has closed: maps that hold nothing and owe nothing begin with it."""
        for bank in self._banks.values():
            if aggregates(bank.declared):
                bank.counts, bank.t_end = self._flow.counts[bank.workers].sum(axis=1)[:, _COVERAGE], now.t
                if not bank.live and not bank.refused:
                    bank.base, bank.t_begin, bank.unplaced = bank.counts, bank.t_end, self._unplaced(bank)
