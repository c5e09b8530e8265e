"""What monitors export, put together over all workers, on its way to the map ring.

An epoch of a program goes out when every worker's has come; workers that missed something, or of a map that does not
merge, are told by themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...programs.maps import Map
from ...programs.merging import rule_of
from ...programs.verdict import Verdict
from ...programs.vm_exports import END, ENTRY
from ...segment.map_ring import Span, encode
from ..arena import aggregates
from .slices import Found, Slice, SliceOf, together, walk

I64 = NDArray[np.int64]
SHARED = 0xFFFF_0000
"""`SHARED_PART`: in the place of a worker, what rank 0 shares; what rank r shares is r more."""
MOST_EPOCHS = 0xFFFF


@dataclass
class _Part:
    """What has come of one worker (or of a rank's shared maps) since it was last told."""

    t_begin: int = 0
    t_end: int = 0
    ends: int = 0
    coverage: I64 = field(default_factory=lambda: np.zeros(6, np.int64))
    maps: dict[int, Found] = field(default_factory=dict)
    refused: dict[int, int] = field(default_factory=dict)


class Exports:
    """Of one program: `take` slices as they come, `ready` records as they can go."""

    def __init__(
        self, verdict: Verdict, program: int, workers: int, epoch_ns: int, limit: int, rank: NDArray[Any] | None = None
    ) -> None:
        """rank: of each worker; None: all are of rank 0."""
        self.verdict, self.program, self._epoch_ns, self._limit = verdict, program, epoch_ns, limit
        self.workers = workers
        self._rank: list[int] = [0] * workers if rank is None else rank.tolist()
        self._shared = {SHARED + r for r in self._rank}
        self._maps = verdict.program.maps
        self._rules = [rule_of(verdict, i) for i in range(len(self._maps))]
        self._by_worker = [m.key is not None and any(x.name == "worker" for x in m.key.members) for m in self._maps]
        self._parts: dict[int, _Part] = {}
        self._state: list[tuple[int | None, bytes]] = []
        self.seen: I64 = np.zeros(6, np.int64)
        """eligible, observed, throttled, lost, faulted, emitted, as far as workers have told"""
        self.left: set[int] = set()
        """workers of which all is out, after the program has left"""
        self.absent: set[int] = set()
        """workers that had left before the program came"""

    @property
    def over(self) -> bool:
        """The program has left, and all of it is out: of every worker, and of what they share."""
        return self._shared <= self.left and len(self.left) + len(self.absent) >= self.workers + len(self._shared)

    def take(self, s: Slice) -> None:
        """One more slice of this program."""
        if s.what == SliceOf.LEFT:
            self.left.add(s.worker)
            return
        found = walk(s.records)
        if s.what == SliceOf.STATE:
            for m in np.unique(found[:, 1]).tolist():
                if m < len(self._maps):
                    self._tell_state(s, m, found[found[:, 1] == m])
            return
        part = self._parts.setdefault(s.worker, _Part())
        for m, declared in enumerate(self._maps):
            records = found[found[:, 1] == m]
            some = records[records[:, 0] == ENTRY]
            if len(some):
                part.maps.setdefault(m, Found(declared)).add(s.records, some[:, 2], some[:, 3])
            for end in records[records[:, 0] == END].tolist():
                part.refused[m] = part.refused.get(m, 0) + int(s.records[end[2] + 1])
        if s.what == SliceOf.EPOCH_ENDS:
            part.t_begin = min(part.t_begin or s.t_begin, s.t_begin)
            part.t_end = max(part.t_end, s.t_end)
            part.coverage += s.coverage
            self.seen += s.coverage
            part.ends += 1

    def ready(self, *, all_of_it: bool = False) -> list[tuple[int | None, bytes]]:
        """Records of epochs that every worker has ended, each with its worker (None: merged). all_of_it: what came."""
        out, self._state = self._state, []
        if not self._parts or not (all_of_it or self._whole()):
            return out
        parts, self._parts = self._parts, {}
        for index, declared in enumerate(self._maps):
            if aggregates(declared):
                out += self._tell(index, declared, parts)
        return out

    def _whole(self) -> bool:
        """Of every worker's epoch the end has come."""
        ended = {w for w, p in self._parts.items() if p.ends}
        if len(ended) + len(self.left) + len(self.absent) < self.workers:
            return False
        return bool(ended - self._shared) and len((ended | self.left | self.absent) - self._shared) == self.workers

    def _tell(self, index: int, declared: Map, parts: dict[int, _Part]) -> list[tuple[int | None, bytes]]:
        rule, own = self._rules[index], {w: p for w, p in parts.items() if w not in self._shared}
        out: list[tuple[int | None, bytes]] = []
        if declared.shared:
            for place in sorted(self._shared & parts.keys()):
                shared, rank = parts[place], place - SHARED
                # At the end its last epoch may come without any worker's.
                who = {w: p for w, p in own.items() if self._rank[w] == rank} or {place: shared}
                out += self._records(index, declared, [shared], who, rank, shared.refused.get(index, 0))
            return out
        alone = {
            w: p
            for w, p in own.items()
            if rule is None or self._by_worker[index] or p.refused.get(index) or p.coverage[2:5].any()
        }
        for w, p in alone.items():
            out += self._records(index, declared, [p], {w: p}, self._rank[w], p.refused.get(index, 0))
        for rank in sorted({self._rank[w] for w in own}):
            rest = {w: p for w, p in own.items() if w not in alone and self._rank[w] == rank}
            out += self._records(index, declared, list(rest.values()), rest, rank, 0)
        return out

    def _records(
        self, index: int, declared: Map, held: list[_Part], who: dict[int, _Part], rank: int, refused: int
    ) -> list[tuple[int | None, bytes]]:
        found = together(declared, (p.maps[index] for p in held if index in p.maps))
        if not found and not refused:
            return []
        keys, values = found.entries(self._rules[index])
        begin, end = min(p.t_begin for p in who.values()), max(p.t_end for p in who.values())
        coverage = np.sum([p.coverage for p in who.values()], axis=0)
        worker = next(iter(who)) if len(who) == 1 and self.workers > 1 and not declared.shared else None
        span = self._span(index, rank, worker, len(who), begin, end, coverage, refused)
        return [(worker, record) for record in encode(span, declared, keys, values, self._limit)]

    def _tell_state(self, s: Slice, index: int, records: I64) -> None:
        declared, some = self._maps[index], records[records[:, 0] == ENTRY]
        found = Found(declared)
        found.add(s.records, some[:, 2], some[:, 3])
        if not found:
            return
        keys, values = found.entries(None)
        if declared.indexed:
            there = values.any(axis=1)
            keys, values = keys[there], values[there]
        if s.worker in self._shared:
            worker, rank = None, s.worker - SHARED
            workers = self._rank.count(rank)
        else:
            worker, rank, workers = s.worker, self._rank[s.worker], 1
        span = self._span(index, rank, worker, workers, s.t_begin, s.t_end, s.coverage, 0, state=True)
        self._state += [(worker, record) for record in encode(span, declared, keys, values, self._limit)]

    def _span(
        self,
        index: int,
        rank: int,
        worker: int | None,
        workers: int,
        begin: int,
        end: int,
        coverage: I64,
        refused: int,
        *,
        state: bool = False,
    ) -> Span:
        first = begin // self._epoch_ns
        epochs = min(max(1, -(-end // self._epoch_ns) - first), MOST_EPOCHS)
        eligible, observed, throttled, lost, faulted, _ = coverage.tolist()
        seen = (eligible, observed, throttled, lost, faulted)
        return Span(self.program, index, rank, worker, workers, first, epochs, begin, end, seen, refused, state)
