"""32 lanes run a program on 32 events, in whatever order: the reference interpreter, one coroutine a lane.

Each lane has registers, stack and row of its own; the maps are one worker's. A schedule says which lanes make a step
next; a step is one instruction, a helper's call whole. Instrumented, so that any fault is raised.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from megascope.capture.programs.event_environment import Environment
from megascope.capture.programs.execution import U64
from megascope.capture.programs.interpreter import Interpreter, _Run
from megascope.capture.programs.isa import R1
from megascope.capture.programs.map_state import MapState
from megascope.capture.programs.memory import Memory
from megascope.capture.programs.verdict import Verdict
from megascope.store.tables import EVENT_ROW

HOOK = EVENT_ROW.offsets["hook"]


class Lane:
    """One event under way. slot: where it is, None at its end."""

    def __init__(self, code: Interpreter, verdict: Verdict, maps: dict[int, MapState], row: bytes) -> None:
        memory = Memory()
        self.environment = Environment(verdict, memory, maps, row, instrumented=True)
        self.run = _Run(code, memory, self.environment, None)
        entry = verdict.program.entry(row[HOOK])
        assert entry is not None
        self.run.enter(entry.pc)
        self.run.registers[R1] = self.environment.context

    @property
    def slot(self) -> int | None:
        return self.run.pc

    def step(self) -> int:
        """One instruction. Returns what it cost."""
        before, at = self.run.spent, self.run.pc
        assert at is not None
        self.run.step(at)
        return self.run.spent - before


Schedule = Callable[[list[Lane]], list[Lane]]
"""Of the lanes that have not ended, in order of their events, those that make a step."""


def one_after_another(lanes: list[Lane]) -> list[Lane]:
    return lanes[:1]


def last_first(lanes: list[Lane]) -> list[Lane]:
    return lanes[-1:]


def lowest_slot_first(lanes: list[Lane]) -> list[Lane]:
    """How a warp runs: the lanes at the lowest slot together."""
    low = min(lane.slot or 0 for lane in lanes)
    return [lane for lane in lanes if lane.slot == low]


def at_random(seed: int) -> Schedule:
    random = Random(seed)
    return lambda lanes: [random.choice(lanes)]


class Batch:
    """Maps of one worker, and batches of events on them. issues: cost of the last batch, lanes in step paid once."""

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict
        self.code = Interpreter(verdict.program.insns, verdict.frames, instrumented=True)
        self.maps = {i: MapState(m) for i, m in enumerate(verdict.program.maps)}
        self.emitted: list[bool] = []
        self.issues = 0

    def run(self, rows: U64, schedule: Schedule) -> None:
        lanes = [Lane(self.code, self.verdict, self.maps, row.tobytes()) for row in rows]
        self.issues = 0
        while left := [lane for lane in lanes if lane.slot is not None]:
            self.issues += max(lane.step() for lane in schedule(left))
        self.emitted += [lane.environment.emitted for lane in lanes]

    def close(self) -> None:
        for i, m in self.maps.items():
            if m.aggregates:
                m.close(i, 0)

    def contents(self) -> list[tuple[bytes, bytes, int]]:
        """Keys, values and refusals of every map."""
        exports = [m.entries(i, 0) for i, m in self.maps.items()]
        return [(e.keys.tobytes(), e.values.tobytes(), e.refused) for e in exports]
