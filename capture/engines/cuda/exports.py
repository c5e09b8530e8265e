"""What monitors export: slices of the device's buffers, put together over all workers, on their way to the map ring.

A slice is a header and records as capture/device/exports.cuh and vm_epochs.cuh say. An epoch of a program goes out when
every worker's has come; workers that missed something, or of a map that does not merge, are told by themselves.
"""

# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from ...programs.histogram import HEAD, WORDS
from ...programs.maps import FIXED_VALUE_BYTES, Map, MapKind
from ...programs.merging import merge, rule_of
from ...programs.verdict import Verdict
from ...programs.vm_exports import END, ENTRY
from ...segment.map_ring import Span, encode
from ..arena import aggregates

U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]
SHARED = 0xFFFF_FFFF
HEADER = 10
"""`SLICE_HEADER`."""
COUNT_BITS = 48
MOST_EPOCHS = 0xFFFF


class SliceOf(IntEnum):
    """`enum SliceOf`."""

    EPOCH = 0
    EPOCH_ENDS = 1
    STATE = 2
    LEFT = 3


@dataclass(frozen=True)
class Slice:
    """One slice: of which program and worker, over what time (ns), and its records. coverage as in `Span`,
    and rows emitted.
    """

    place: int
    what: SliceOf
    program: int
    worker: int
    t_begin: int
    t_end: int
    coverage: I64
    records: U64


def slices(buffer: U64) -> Iterator[Slice]:
    """The slices of a buffer. Raises ValueError for words that no monitor writes."""
    at = 0
    while at < len(buffer):
        head = buffer[at : at + HEADER].tolist()
        length = head[0] & 0xFFFF_FFFF
        if len(head) < HEADER or not HEADER <= length <= len(buffer) - at:
            raise ValueError(f"no slice at word {at}")
        yield Slice(
            head[0] >> 32 & 0xFF,
            SliceOf(head[0] >> 40),
            head[1] & 0xFFFF_FFFF,
            head[1] >> 32,
            head[2],
            head[3],
            np.array(head[4:], np.int64),
            buffer[at + HEADER : at + length].copy(),
        )
        at += length


@numba.njit("int64[:, :](uint64[::1])", cache=True, nogil=True)
def _walk(words: U64) -> I64:
    """[records, 4]: kind, map, first word, length of each; where they do not fit, no more of them."""
    out = np.empty((len(words) // 3 + 1, 4), np.int64)
    at, n = np.int64(0), 0
    while at < len(words):
        length = np.int64(words[at] >> np.uint64(32))
        if length < 3 or length > len(words) - at:
            break
        out[n, 0] = np.int64(words[at] & np.uint64(0xFF))
        out[n, 1] = np.int64(words[at] >> np.uint64(8) & np.uint64(0xFF))
        out[n, 2] = at
        out[n, 3] = length
        at += length
        n += 1
    return out[:n]


def entries(declared: Map, words: U64, found: I64) -> tuple[U8, U8]:
    """keys [n, key_size] and values [n, value_size] of a map's records found in `words`."""
    n, at, length = len(found), found[:, 2], found[:, 3]
    key_words = 1 if declared.indexed else -(-declared.key_size // 8)
    value_size = FIXED_VALUE_BYTES.get(declared.kind, declared.value_size)
    keys = words[at[:, None] + 1 + np.arange(key_words)].view(np.uint8).reshape(n, -1)[:, : declared.key_size]
    begin = at + 1 + key_words
    if declared.kind != MapKind.HIST:
        values = words[begin[:, None] + np.arange(-(-value_size // 8))]
        return keys, values.view(np.uint8).reshape(n, -1)[:, :value_size]
    out: U64 = np.zeros((n, WORDS), np.uint64)
    out[:, :HEAD] = words[begin[:, None] + np.arange(HEAD)]
    counts = length - 1 - key_words - HEAD
    row = np.repeat(np.arange(n), counts)
    within = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    packed = words[np.repeat(begin + HEAD, counts) + within]
    out[row, HEAD + (packed >> np.uint64(COUNT_BITS)).astype(np.int64)] = packed & np.uint64((1 << COUNT_BITS) - 1)
    return keys, out.view(np.uint8).reshape(n, -1)


@dataclass
class _Part:
    """What has come of one worker (or of the shared maps) since it was last told."""

    t_begin: int = 0
    t_end: int = 0
    ends: int = 0
    coverage: I64 = field(default_factory=lambda: np.zeros(6, np.int64))
    maps: dict[int, list[tuple[U8, U8]]] = field(default_factory=dict)
    refused: dict[int, int] = field(default_factory=dict)


class Exports:
    """Of one program: `take` slices as they come, `ready` records as they can go."""

    def __init__(
        self, verdict: Verdict, program: int, workers: int, epoch_ns: int, limit: int, rank: NDArray[Any] | None = None
    ) -> None:
        """rank: of each worker; None: all are of rank 0. A shared map is all workers', and told as rank 0's."""
        self.verdict, self.program, self._epoch_ns, self._limit = verdict, program, epoch_ns, limit
        self.workers = workers
        self._rank: list[int] = [0] * workers if rank is None else rank.tolist()
        self._maps = verdict.program.maps
        self._rules = [rule_of(verdict, i) for i in range(len(self._maps))]
        self._by_worker = [m.key is not None and any(x.name == "worker" for x in m.key.members) for m in self._maps]
        self._parts: dict[int, _Part] = {}
        self._state: list[tuple[int | None, bytes]] = []
        self.seen: I64 = np.zeros(6, np.int64)
        """eligible, observed, throttled, lost, faulted, emitted, as far as workers have told"""
        self.left: set[int] = set()
        """workers of which all is out, after the program has left"""

    def take(self, s: Slice) -> None:
        """One more slice of this program."""
        if s.what == SliceOf.LEFT:
            self.left.add(s.worker)
            return
        found = _walk(s.records)
        by_map = {int(m): found[found[:, 1] == m] for m in np.unique(found[:, 1]) if m < len(self._maps)}
        if s.what == SliceOf.STATE:
            for m, records in by_map.items():
                self._tell_state(s, m, records)
            return
        part = self._parts.setdefault(s.worker, _Part())
        for m, records in by_map.items():
            some = records[records[:, 0] == ENTRY]
            if len(some):
                part.maps.setdefault(m, []).append(entries(self._maps[m], s.records, some))
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
        told = [w for w in self._parts if w != SHARED]
        whole = len(told) == self.workers and all(self._parts[w].ends for w in told)
        if not self._parts or not (whole or all_of_it):
            return out
        parts, self._parts = self._parts, {}
        for index, declared in enumerate(self._maps):
            if aggregates(declared):
                out += self._tell(index, declared, parts)
        return out

    def _tell(self, index: int, declared: Map, parts: dict[int, _Part]) -> list[tuple[int | None, bytes]]:
        rule, own = self._rules[index], {w: p for w, p in parts.items() if w != SHARED}
        if declared.shared:
            shared = parts.get(SHARED, _Part())
            who = own or {SHARED: shared}  # at the end its last epoch may come without any worker's
            return self._records(index, declared, shared.maps.get(index, []), who, shared.refused.get(index, 0))
        alone = {
            w: p
            for w, p in own.items()
            if rule is None or self._by_worker[index] or p.refused.get(index) or p.coverage[2:5].any()
        }
        out: list[tuple[int | None, bytes]] = []
        for w, p in alone.items():
            out += self._records(index, declared, p.maps.get(index, []), {w: p}, p.refused.get(index, 0))
        for rank in sorted({self._rank[w] for w in own}):
            rest = {w: p for w, p in own.items() if w not in alone and self._rank[w] == rank}
            held = [pair for p in rest.values() for pair in p.maps.get(index, [])]
            out += self._records(index, declared, held, rest, 0)
        return out

    def _records(
        self, index: int, declared: Map, held: list[tuple[U8, U8]], who: dict[int, _Part], refused: int
    ) -> list[tuple[int | None, bytes]]:
        if not held and not refused:
            return []
        keys, values = _joined(declared, held)
        rule = self._rules[index]
        if rule is not None:
            keys, values = merge(rule, keys, values)
        begin, end = min(p.t_begin for p in who.values()), max(p.t_end for p in who.values())
        coverage = np.sum([p.coverage for p in who.values()], axis=0)
        worker = next(iter(who)) if len(who) == 1 and self.workers > 1 and not declared.shared else None
        rank = 0 if declared.shared else self._rank[next(iter(who))]
        span = self._span(index, rank, worker, len(who), begin, end, coverage, refused)
        return [(worker, record) for record in encode(span, declared, keys, values, self._limit)]

    def _tell_state(self, s: Slice, index: int, records: I64) -> None:
        declared, some = self._maps[index], records[records[:, 0] == ENTRY]
        if not len(some):
            return
        keys, values = entries(declared, s.records, some)
        if declared.indexed:
            there = values.any(axis=1)
            keys, values = keys[there], values[there]
        worker, workers = (None, self.workers) if s.worker == SHARED else (s.worker, 1)
        rank = 0 if worker is None else self._rank[worker]
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


def _joined(declared: Map, held: Iterable[tuple[U8, U8]]) -> tuple[U8, U8]:
    value_size = FIXED_VALUE_BYTES.get(declared.kind, declared.value_size)
    keys = [np.empty((0, declared.key_size), np.uint8), *(k for k, _ in held)]
    values = [np.empty((0, value_size), np.uint8), *(v for _, v in held)]
    return np.concatenate(keys), np.concatenate(values)
