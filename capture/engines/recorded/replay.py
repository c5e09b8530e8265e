"""Programs over a recording: attached where it begins, given each epoch's events, closed where the epochs ended."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ....store.errors import Exit, MegascopeError, Refused
from ....store.tables import HOOKS, RECORDER
from ...attachments import selection_of
from ...feedback import Values, cells_of
from ...programs.execution import HOOK_SLOTS, UNLIMITED, Count, Export, Limits
from ...programs.language import Query
from ...programs.native import Native
from ...programs.native_context import columns_read
from ...programs.program import Program
from ...programs.verdict import Verdict
from ...programs.verifier import verify
from ...segment import map_ring
from ...segment.exports import Record
from ..host.account import Moment
from ..host.attached import EPOCH, Attached
from .answering import Answering
from .columns import Decoder
from .coverage import Told
from .events import Events, Stretch
from .output import Output
from .recording import Recording

I64 = NDArray[np.int64]
MOST_PROGRAMS = 31
_SEEN = [Count.OBSERVED, Count.THROTTLED, Count.FAULTED]
PROGRESS_S = 0.2


@dataclass(frozen=True)
class Progress:
    """How far a replay is."""

    seconds: float
    rows: int
    of: int
    t: int


class Interrupted(MegascopeError):
    """The replay was stopped: there is no answer."""

    def __init__(self) -> None:
        super().__init__("the replay was stopped", "nothing was written", code=Exit.INTERRUPTED)


class Replay:
    """One run of some programs over a recording. programs: with what each may spend; in the order of their slots.

    Raises Rejected for what the verifier refuses, and Refused for hooks that were not recorded and for too many.
    """

    def __init__(self, recording: Recording, programs: Sequence[tuple[Program, Limits]]) -> None:
        self.recording = recording
        if not 0 < len(programs) <= MOST_PROGRAMS:
            raise Refused(
                recording.what, f"{len(programs)} programs, not 1 to {MOST_PROGRAMS}", "replay it several times"
            )
        names = [p.name for p, _ in programs]
        for name in names:
            if names.count(name) > 1:
                raise Refused(recording.what, f"two programs are called {name}", "rename one")
        for program, _ in programs:
            self._check(program)
        verdicts = [verify(program) for program, _ in programs]
        self.programs: dict[int, Program] = {RECORDER + 1 + i: p for i, (p, _) in enumerate(programs)}
        wanted = frozenset[str]().union(*(columns_read(v) for v in verdicts))
        self._hooks = 0
        for program, _ in programs:
            self._hooks |= program.mask
        self._decoder = Decoder(recording, wanted, self._hooks)
        self._events = Events(recording, self._decoder)
        self.begin, self.end = self._span()
        self._players = [
            _Player(recording, i + 1, number, verdict, _limits(program, limits, recording.epoch_ns), self.begin)
            for i, (number, (program, limits), verdict) in enumerate(
                zip(self.programs, programs, verdicts, strict=True)
            )
        ]
        self.rows = self._events.rows
        """rows of the recording"""

    def table(self) -> list[dict[str, Any]]:
        """Rows of the trace's table `programs`."""
        return [p.row(self.begin, self.end) for p in self._players]

    def run(
        self,
        output: Output,
        *,
        queries: Mapping[str, Query] | None = None,
        progress: Callable[[Progress], None] = lambda _: None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> dict[str, str]:
        """Give every program every event. queries: programs whose host's side is run, by name.

        Returns what these printed. Raises Interrupted when `stopped()` says so, Refused for a damaged part.
        """
        begun = shown = time.monotonic()
        answering = {name: Answering(query, self.begin) for name, query in (queries or {}).items()}
        for player in self._players:
            player.answering = answering.get(player.name)
        done, epoch_ns = 0, self.recording.epoch_ns
        cuts = [int(t) for t in self.recording.cuts if self.begin < t < self.end]
        try:
            for epoch, stretches in self._events.epochs():
                t = epoch * epoch_ns
                while cuts and cuts[0] < t:
                    self._close(cuts.pop(0), output)
                if self.begin < t:
                    if cuts and cuts[0] == t:
                        cuts.pop(0)
                    self._close(t, output)
                for stretch in stretches:
                    done += self._see(stretch, output)
                    now = time.monotonic()
                    if stopped():
                        raise Interrupted
                    if now - shown > PROGRESS_S:
                        shown = now
                        progress(Progress(now - begun, done, self.rows, t))
            for t in cuts:
                self._close(t, output)
            self._close(self.end, output, last=True)
        finally:
            self._decoder.close()
        for answer in answering.values():
            answer.end()
        return {name: answer.text for name, answer in answering.items()}

    @property
    def fed(self) -> list[str]:
        """Programs that read engine-wide values."""
        return [p.name for p in self._players if p.is_fed]

    @property
    def _at(self) -> list[int]:
        """Hooks of all programs."""
        return [h for h in range(HOOK_SLOTS) if self._hooks >> h & 1]

    @property
    def eligible(self) -> int:
        """Events that some program was attached to, by the recording's account: of closed intervals."""
        return int(self.recording.eligible[:, self._at].sum())

    @property
    def missing(self) -> int:
        """Those of them that no program was given.

        Where rows lie behind the last interval that was closed, as after a kill, what coverage says: those that were
        given cannot be told from them by their number.
        """
        span = self._events.span
        if span is not None and span[1] > self.recording.closed_to:
            return self.recording.told_missing([h for h in self._at if h != EPOCH])
        given = np.zeros(HOOK_SLOTS, np.int64)
        for player in self._players:
            np.maximum(given, player.given, out=given)
        gone = self.recording.eligible.sum(axis=0) - given
        return int(sum(max(0, int(gone[h])) for h in range(HOOK_SLOTS) if self._hooks >> h & 1 and h != EPOCH))

    def _check(self, program: Program) -> None:
        if program.kind != "observe" or not program.mask:
            why = f"program {program.name} is of kind {program.kind} and at no hook"
            raise Refused(self.recording.what, why, "replay observers of hooks")
        missing = [h.name for h in HOOKS if program.mask & ~(self.recording.hooks | 1 << EPOCH) & 1 << h.id]
        if missing:
            there = ", ".join(h.name for h in HOOKS if self.recording.hooks >> h.id & 1)
            why = f"program {program.name} wants the hook {missing[0]}, which was not recorded"
            raise Refused(self.recording.what, why, f"it has {there}")

    def _span(self) -> tuple[int, int]:
        span, recording = self._events.span, self.recording
        begin, end = recording.begin, recording.end
        if span is not None:
            begin = span[0] if begin is None else min(begin, span[0])
            end = max(end, span[1] + 1)
        return (begin or 0), end

    def _see(self, stretch: Stretch, output: Output) -> int:
        n = len(stretch.rows)
        by = np.zeros(n, np.uint32)
        for player in self._players:
            player.see(stretch, by)
        if by.any():
            some = np.nonzero(by)[0]
            rows = self._decoder.ring_rows(stretch.place, np.asarray(stretch.rows)[some])
            rows = rows.set_column(rows.schema.get_field_index("by"), rows.schema.field("by"), pa.array(by[some]))
            output.events(rows)
            for player in self._players:
                player.wrote(stretch, by)
        return n

    def _close(self, t: int, output: Output, *, last: bool = False) -> None:
        self.recording.pass_time(t)
        for player in self._players:
            records, coverage = player.close(t, last=last)
            output.maps(records)
            if coverage.num_rows:
                output.coverage(coverage)


class _Player:
    """One program, and where what it has to tell goes: a sink of Exports whose room has no end."""

    map_bytes = 1 << 22

    def __init__(
        self, recording: Recording, slot: int, number: int, verdict: Verdict, limits: Limits, begin: int
    ) -> None:
        self._recording = recording
        self._attached = Attached(slot, number, verdict, limits, recording.monitor, recording.rank, recording.epoch_ns)
        self._attached.install(self._moment(begin))
        self._told = Told(recording, number, self._attached.flow, begin)
        self._columns = sorted(columns_read(verdict))
        self._bit = np.uint32(1 << slot)
        self._records: list[Record] = []
        self._values = Values()
        self._values.follow(number, verdict.program)
        self.answering: Answering | None = None

    def _moment(self, t: int) -> Moment:
        none = np.zeros(self._recording.workers, np.int64)
        return Moment(t, none, self._recording.lost, int(self._recording.monitor.max()) + 1)

    def row(self, begin: int, end: int) -> dict[str, Any]:
        """Its row of `programs`."""
        a = self._attached
        program = a.verdict.program
        return {
            "program": a.id,
            "name": program.name,
            "selection": selection_of(program),
            "source": program.source,
            "hash": program.hash,
            "slot": a.slot,
            "hooks": [h.name for h in HOOKS if a.hooks >> h.id & 1],
            "instructions": None if a.limits.instructions >= UNLIMITED else a.limits.instructions,
            "rows": None if a.limits.rows >= UNLIMITED else a.limits.rows,
            "attached": begin,
            "detached": end,
        }

    @property
    def name(self) -> str:
        return self._attached.verdict.program.name

    @property
    def given(self) -> I64:
        """Events of the recording that it was given so far, by hook."""
        given: I64 = self._attached.flow.taken.sum(axis=0)
        return given

    def see(self, stretch: Stretch, by: NDArray[np.uint32]) -> None:
        """Run over rows, marking in `by` those that it emits."""
        execution = cast("Native", self._attached.of(stretch.rank))
        columns = {name: stretch.columns[name] for name in self._columns}
        execution.run_columns(columns, by, self._attached.slot)

    def wrote(self, stretch: Stretch, by: NDArray[np.uint32]) -> None:
        """The rows that it marked are in the trace."""
        mine = by & self._bit != 0
        at = stretch.columns["worker"][mine], stretch.columns["hook"][mine]
        np.add.at(self._attached.flow.written, at, 1)

    def close(self, t: int, *, last: bool) -> tuple[list[Record], pa.RecordBatch]:
        """Its epoch ends at t: records of what its maps held, rows of `coverage`. Then its cells are fed."""
        now, flow = self._moment(t), self._attached.flow
        seen: I64 = np.sum([e.counters for e in self._attached.executions], axis=0)[:, :, _SEEN].sum(axis=2)
        seen[:, EPOCH] = flow.taken[:, EPOCH]
        flow.taken[:] = seen
        self._told.misplaced(seen)
        if last:
            self._attached.end(now, self.map_bytes)
        else:
            self._attached.close(now)
        self._attached.exports.flush(self, None)
        records, self._records = self._records, []
        self._feed(records, t)
        if self.answering is not None:
            # The last epoch of a recording is seldom whole; it ends all the same.
            epoch_ns = self._recording.epoch_ns
            self.answering.closed(records, self._state(), -(-t // epoch_ns) * epoch_ns if last else t)
        return records, self._told.rows(t)

    def _state(self) -> list[Export]:
        """What the maps hold now that the query keeps state in."""
        workers = range(self._recording.workers)
        kept = self.answering.keeps if self.answering is not None else []
        return [self._attached.of(int(self._recording.rank[w])).entries(index, w) for index in kept for w in workers]

    def _feed(self, records: list[Record], t: int) -> None:
        if not self.is_fed:
            return
        maps = self._attached.verdict.program.maps
        for span, n, body in records:
            self._values.add(span, maps[span.map], map_ring.entries(maps[span.map], n, body))
        for (_, index, cell), (value, stamp) in self._values.take(-(-t // self._recording.epoch_ns)).items():
            for execution in self._attached.executions:
                execution.feed(index, cell, value, stamp)

    @property
    def is_fed(self) -> bool:
        """It reads engine-wide values, which live came later than here."""
        return bool(cells_of(self._attached.verdict.program))

    def keep_map(self, monitor: int, record: bytes) -> bool:  # noqa: ARG002
        self._records += map_ring.records(record)
        return True


def _limits(program: Program, limits: Limits, epoch_ns: int) -> Limits:
    """Of rows no more than the program's own limit per second comes to in an epoch."""
    if program.emit_limit is None:
        return limits
    return Limits(limits.instructions, min(limits.rows, math.ceil(program.emit_limit * epoch_ns / 1e9)))
