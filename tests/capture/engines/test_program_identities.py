"""Every event that a program was attached to is accounted for, whatever is attached, throttled or lost when."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import lru_cache
from typing import Any
from unittest import mock

import numpy as np
from host_runs import SMALL, spec_of
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, rule

from megascope.capture.engines.build import build_graph
from megascope.capture.engines.host import state
from megascope.capture.engines.host.account import Account, Moment
from megascope.capture.engines.host.exports import Telemetry
from megascope.capture.engines.host.monitors import Monitors, Patience, lost_by_hook
from megascope.capture.engines.host.programs import Programs
from megascope.capture.engines.host.sinks import MemorySink
from megascope.capture.programs import image, native
from megascope.capture.programs.language import compile
from megascope.capture.programs.program import Program
from megascope.capture.programs.reference import Reference
from megascope.capture.segment import map_ring
from megascope.capture.segment.program_words import Code, Op
from megascope.capture.segment.requests import Request
from megascope.capture.segment.words import Record, Summary
from megascope.store.tables import HOOK_BY_NAME

WORKERS, MONITORS, EPOCH_NS = 4, 2, 1_000
START, COMPLETE, WAIT, EPOCH = (HOOK_BY_NAME[n].id for n in ("start", "complete", "wait", "epoch"))
HOOKS = (START, COMPLETE, WAIT)
TEXTS = {
    "every": "start, complete { @n[task_class] = count(); emit(); }",
    "some": "complete /task_class > 2/ { @n[task_class] = count(); @h = hist(since_ns); emit(); }",
    "wide": "start, complete, wait { @n[worker] = count(); }",
    "tight": "start { @n[seq] = count(); } epoch { @closed = count(); }",
}


@lru_cache
def program(name: str) -> Program:
    return compile(TEXTS[name], name=name).program


@lru_cache
def packed(name: str) -> bytes:
    return image.pack(program(name))


class Chaos(MemorySink):
    """A far side that has room only when it is told so, and hands over requests when it is asked to."""

    waits = False

    def __init__(self) -> None:
        super().__init__(mask=0)
        self.rows_free, self.keeps, self.map_free = 1 << 30, True, 1 << 30
        self.asked: list[Request] = []
        self.ring_lost = 0
        self.masks: list[tuple[int, int]] = []

    def room(self, monitor: int) -> int:  # noqa: ARG002
        return self.rows_free

    def write(self, monitor: int, rows: Any, by: Any) -> None:
        self.rows_free -= len(rows)
        super().write(monitor, rows, by)

    def lose(self, monitor: int, rows: int) -> None:  # noqa: ARG002
        self.ring_lost += rows

    def keep(self, monitor: int, records: Any) -> bool:
        return self.keeps and super().keep(monitor, records)

    def keep_map(self, monitor: int, record: bytes) -> bool:
        if len(record) > self.map_free:
            return False
        self.map_free -= len(record)
        return super().keep_map(monitor, record)

    def next_request(self) -> Request | None:  # type: ignore[override]
        return self.asked.pop(0) if self.asked else None

    def wanted(self) -> tuple[int, int] | None:
        return self.masks.pop(0) if self.masks else None


class Machine(RuleBasedStateMachine):
    """Monitors over a simulation that does only what the rules say; `truth` counts what each program must have seen."""

    slots = Bundle("slots")

    @initialize()
    def begin(self) -> None:
        spec = spec_of(SMALL)
        self.patch = mock.patch.object(native, "Native", Reference)
        self.patch.start()
        monitor = np.arange(WORKERS) % MONITORS
        self.sim = state.make(build_graph(spec.model), None, WORKERS, 4, monitor)
        self.t = 1
        self.sim.misc[state.T_NOW] = 1
        begin = Moment(1, self.sim.worker[:, state.SEQ], lost_by_hook(self.sim), MONITORS)
        self.account = Account(monitor, np.zeros(WORKERS, np.int64), EPOCH_NS, begin)
        self.programs = Programs(self.account, exported=0x1FFE, slots=3, arena=1 << 30, telemetry=Telemetry(0, 1))
        self.sink = Chaos()
        self.monitors = Monitors(self.sim, self.account, self.programs, self.sink, Patience(lambda: False))
        self.number = 0
        self.slot_of: dict[int, int] = {}
        self.recorded = 0
        self.attached: dict[int, tuple[int, str]] = {}
        """slot → program id, name"""
        self.names: dict[int, str] = {}
        self.eligible: Counter[tuple[int, int]] = Counter()
        self.lost: Counter[int] = Counter()
        self.observed: Counter[int] = Counter()
        """by program, at the hooks of events"""
        self.must: dict[int, dict[tuple[int, int], int]] = defaultdict(dict)
        """slot → events that its program emitted, by (worker, seq), under which program"""

    # --- what happens ------------------------------------------------------------------------------------------

    def _fire(self, worker: int, hook: int, task_class: int, *, lose: bool) -> None:
        if not int(self.sim.misc[state.MASK]) >> hook & 1:
            return
        self.t += 1
        self.sim.misc[state.T_NOW] = self.t
        self.sim.worker[worker, state.SEQ] += 1
        seq = int(self.sim.worker[worker, state.SEQ])
        watchers = {1} if self.recorded >> hook & 1 else set()
        watchers |= {p for p, name in self.attached.values() if program(name).mask >> hook & 1}
        for p in watchers:
            self.eligible[p, hook] += 1
        if lose:
            self.sim.worker[worker, state.LOST + hook] += 1
            self.lost[worker] += 1
            return
        m = worker % MONITORS
        i = int(self.sim.fill[m])
        aux = self.t - 3
        row = (self.t, seq, 1 << 32, aux, 0, 0, task_class << 32 | worker << 48, hook << 32)
        self.sim.stage[m, i] = row
        self.sim.fill[m] = i + 1
        for slot, (p, name) in self.attached.items():
            if name == "every" and hook in (START, COMPLETE):
                self.must[slot][worker, seq] = p

    @rule(
        worker=st.integers(0, WORKERS - 1),
        hook=st.sampled_from(HOOKS),
        task_class=st.integers(0, 5),
        n=st.integers(1, 9),
    )
    def fire(self, worker: int, hook: int, task_class: int, n: int) -> None:
        for _ in range(n):
            self._fire(worker, hook, task_class, lose=False)

    @rule(worker=st.integers(0, WORKERS - 1), hook=st.sampled_from(HOOKS), n=st.integers(1, 3))
    def lose(self, worker: int, hook: int, n: int) -> None:
        for _ in range(n):
            self._fire(worker, hook, 1, lose=True)

    @rule()
    def publish(self) -> None:
        self.monitors.publish()

    @rule(epochs=st.integers(1, 3))
    def close_epoch(self, epochs: int) -> None:
        after = (self.t // EPOCH_NS + epochs) * EPOCH_NS
        self.sim.memory[self.sim.misc[state.HEAP_AT]] = after
        before = dict(self.attached)
        self.monitors.close_epoch()
        assert before == self.attached
        for p, name in self.attached.values():
            if name == "tight":
                self.eligible[p, EPOCH] += WORKERS
        self.t = after
        self.sim.misc[state.T_NOW] = after

    @rule(mask=st.sampled_from((0, 1 << START, sum(1 << h for h in HOOKS))))
    def record(self, mask: int) -> None:
        self.sink.masks.append((mask, 1))
        self.monitors.publish()
        self.recorded = mask

    @rule(rows=st.sampled_from((0, 3, 1 << 30)), keeps=st.booleans(), maps=st.sampled_from((0, 500, 1 << 30)))
    def room(self, rows: int, keeps: bool, maps: int) -> None:
        self.sink.rows_free, self.sink.keeps, self.sink.map_free = rows, keeps, maps

    def _ask(self, op: Op, slot: int, name: str, instructions: int = 0, rows: int = 0) -> bool:
        self.number += 1
        self.slot_of[self.number] = slot
        data = packed(name) if name else b""
        self.sink.asked.append(Request(self.number, op, slot, 0, len(data), 0, instructions, rows, data))
        self.monitors.publish()
        number, code, p, text = self.sink.answers[-1]
        assert number == self.number
        if code != Code.DONE:
            assert code == Code.SLOT, text
            return False
        old = self.attached.pop(slot, None)
        if old and old[1] == "tight":
            self.eligible[old[0], EPOCH] += WORKERS
        if name:
            self.attached[slot] = p, name
            self.names[p] = name
        return True

    @rule(
        target=slots,
        slot=st.integers(1, 4),
        name=st.sampled_from(sorted(TEXTS)),
        instructions=st.sampled_from((0, 150)),
        rows=st.sampled_from((0, 2)),
    )
    def attach(self, slot: int, name: str, instructions: int, rows: int) -> int:
        self._ask(Op.ATTACH, slot, name, instructions, rows)
        return slot

    @rule(slot=slots, name=st.sampled_from(sorted(TEXTS)), instructions=st.sampled_from((0, 150)))
    def replace(self, slot: int, name: str, instructions: int) -> None:
        self._ask(Op.REPLACE, slot, name, instructions)

    @rule(slot=consumes(slots))
    def detach(self, slot: int) -> None:
        self._ask(Op.DETACH, slot, "")

    # --- what must hold ----------------------------------------------------------------------------------------

    def teardown(self) -> None:
        if not hasattr(self, "monitors"):
            return
        self.room(1 << 30, True, 1 << 30)
        for p, name in self.attached.values():
            if name == "tight":
                self.eligible[p, EPOCH] += WORKERS
        self.monitors.end()
        self.patch.stop()
        words = self.sink.records
        intervals = words[words[:, Summary.WHAT] & 0xFF == Record.INTERVAL]
        coverage = words[words[:, Summary.WHAT] & 0xFF != Record.INTERVAL]
        self._sequence(intervals)
        sums = self._coverage(coverage)
        self._rows(sums)
        self._maps()

    def _sequence(self, intervals: Any) -> None:
        for w in range(WORKERS):
            mine = intervals[intervals[:, Summary.WHAT] >> 32 == w]
            seq = int(self.sim.worker[w, state.SEQ])
            if not len(mine):
                assert seq == 0
                continue
            first, end = mine[:, Summary.SEQ_FROM], mine[:, Summary.SEQ_TO]
            assert (first[0], end[-1]) == (1, seq + 1)
            assert (first[1:] == end[:-1]).all()
            assert (end - first == mine[:, Summary.DEQUEUED] + mine[:, Summary.INTERVAL_LOST]).all()
            assert mine[:, Summary.INTERVAL_LOST].sum() == self.lost[w]
            assert not mine[:, Summary.UNCLAIMED].any()

    def _coverage(self, coverage: Any) -> dict[int, Any]:
        c = {name: coverage[:, Summary[name]] for name in Summary.__members__ if name != "WORDS"}
        assert (c["ELIGIBLE"] == c["OBSERVED"] + c["THROTTLED"] + c["LOST"] + c["FAULTED"]).all()
        assert (c["EMITTED"] == c["WRITTEN"] + c["RING_LOST"] + c["EMIT_THROTTLED"]).all()
        assert not c["FAULTED"].any()
        got: Counter[tuple[int, int]] = Counter()
        sums: dict[int, Any] = defaultdict(lambda: np.zeros(9, np.int64))
        for row in coverage:
            p, hook = int(row[Summary.WHAT]) >> 16 & 0xFFFF, int(row[Summary.WHAT]) >> 8 & 0xFF
            got[p, hook] += int(row[Summary.ELIGIBLE])
            sums[p] += row[Summary.ELIGIBLE :]
            if hook != EPOCH:
                self.observed[p] += int(row[Summary.OBSERVED])
        assert got == +self.eligible
        return sums

    def _rows(self, sums: dict[int, Any]) -> None:
        written, ring_lost = (w - Summary.ELIGIBLE for w in (Summary.WRITTEN, Summary.RING_LOST))
        by, events = self.sink.by, self.sink.events
        for slot, those in self._slots().items():
            assert sum(int(sums[p][written]) for p in those) == (by >> slot & 1).sum()
        assert (by != 0).all()
        keys = list(zip(events["worker"].tolist(), events["seq"].tolist(), strict=True))
        assert len(set(keys)) == len(keys)
        # An event is seen by one generation, and by none while nobody was attached.
        for slot, must in self.must.items():
            bits = {k for k, b in zip(keys, by.tolist(), strict=True) if b >> slot & 1 and k in must}
            for p in set(must.values()):
                counts = sums[p]
                missed = counts[ring_lost] + counts[Summary.EMIT_THROTTLED - Summary.ELIGIBLE]
                missed += counts[Summary.THROTTLED - Summary.ELIGIBLE]
                mine = {k for k, owner in must.items() if owner == p}
                assert len(mine) - missed == len(mine & bits) == counts[written]

    def _slots(self) -> dict[int, set[int]]:
        out: dict[int, set[int]] = defaultdict(set)
        out[0].add(1)
        for request, code, p, _ in self.sink.answers:
            if code == Code.DONE:
                out[self.slot_of[request]].add(p)
        return out

    def _maps(self) -> None:
        counted: Counter[int] = Counter()
        refused: Counter[int] = Counter()
        for record in self.sink.maps:
            for span, n, body in map_ring.records(record):
                declared = program(self.names[span.program]).maps[span.map]
                assert span.coverage[0] == sum(span.coverage[1:])
                assert span.t_begin <= span.t_end
                if declared.name == "n":
                    values = map_ring.entries(declared, n, body).values
                    counted[span.program] += int(values.view("<u8").sum())
                    refused[span.program] += span.refused
        for p, name in self.names.items():
            observed = self.observed[p]
            if name in ("every", "wide") and not refused[p]:
                assert counted[p] == observed
            assert counted[p] <= observed


TestIdentities = Machine.TestCase
TestIdentities.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
