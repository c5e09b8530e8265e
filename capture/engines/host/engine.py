"""Runs the simulation step by step, and tells its tables; what its monitors do stands in `monitors`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ....store.errors import MegascopeError
from ....store.tables import HOOK_BY_NAME
from ...segment.words import Worker
from ..build import build_graph
from ..faults import Active, GroundTruth, Injector
from ..schedule import static_schedule
from ..serving import Plan, Serving, Teller
from ..side_tables import compiler_tables
from . import simulate, state
from .account import Account, Moment
from .exports import Telemetry
from .monitors import NAP_S, Monitors, Patience, lost_by_hook
from .programs import Programs
from .sinks import Sink
from .spec import Spec
from .state import I64

_run: Any = simulate.run

T_ZERO = 1_000_000
"""Virtual time begins here, so that no time is 0, which stands for "not known"."""
WAKE_NS = 240
"""Between a worker's being given work, or its dep's being satisfied, and its going on."""
GAP_NS = 3_000
"""The host's part between two iterations."""
LINK_NS = 1_800
LINK_BYTES_PER_NS = 50
PLANNED = 64
"""Steps planned at once."""


@dataclass(frozen=True)
class Result:
    """What a run came to. Counts are events; t is virtual, in ns. truth: see `faults`; it stands in no table."""

    steps: int
    t: int
    fired: int
    lost: int
    dequeued: int
    written: int
    ring_lost: int
    truth: GroundTruth


def monitors_of(spec: Spec) -> I64:
    """Monitor of each worker: blocks of neighbours, never over two ranks."""
    per_rank = spec.monitors or -(-spec.workers // 32)
    worker = np.arange(spec.workers * spec.model.ranks)
    return worker // spec.workers * per_rank + worker % spec.workers * per_rank // spec.workers


def exported_hooks(spec: Spec) -> int:
    """Mask of the hooks that a run fires: a static schedule has no queues, one rank no communication."""
    absent = {"epoch"}
    if not spec.dynamic:
        absent |= {"assign", "pressure"}
    if spec.model.ranks == 1:
        absent |= {"send", "receive"}
    return sum(1 << h.id for h in HOOK_BY_NAME.values() if h.name not in absent)


class HostEngine:
    """One run of a spec. Make it, give `tables` to a segment, then `run` it into a sink.

    Raises Usage when a fault control cannot be applied to the model or the schedule.
    """

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.graph = build_graph(spec.model)
        self.schedule = None if spec.dynamic else static_schedule(self.graph, spec.workers)
        self.monitor = monitors_of(spec)
        self.injector = Injector(spec.faults, self.graph, spec.workers * spec.model.ranks, dynamic=spec.dynamic)
        self.epoch_ns = int(spec.epoch_ms * 1e6)
        self._sim = state.make(self.graph, self.schedule, spec.workers, spec.queue, self.monitor)
        self._settings()
        self._rank = np.arange(len(self.monitor)) // spec.workers
        start = Moment(T_ZERO, self._sim.worker[:, state.SEQ], lost_by_hook(self._sim), int(self.monitor.max()) + 1)
        self._account = Account(self.monitor, self._rank, self.epoch_ns, start)
        self._programs = Programs(
            self._account,
            exported=exported_hooks(spec),
            slots=spec.programs,
            arena=spec.arena_mb << 20,
            telemetry=Telemetry(spec.telemetry, T_ZERO),
        )
        self._serving = Serving(spec.load)
        self._plan: Plan | None = None
        self._attended = np.empty((0, 0), np.int64)
        self._active: Active | None = None
        self._step = -1
        self._begun_ns = 0

    @property
    def t(self) -> int:
        """Virtual time, ns."""
        return int(self._sim.misc[state.T_NOW])

    @property
    def step(self) -> int:
        """The iteration that goes on, -1 before the first."""
        return self._step

    def tables(self) -> dict[str, pa.Table]:
        """The compiler's side tables of this run."""
        return compiler_tables(self.graph, self.spec.workers, self.schedule, self.monitor)

    def load(self) -> None:
        """Load the compiled simulation, so that `run` starts at once. About 10 s the first time on a machine."""
        _run.compile("int64(int64, int64)")

    def run(self, sink: Sink, stop: Callable[[], bool] = lambda: False, *, hold: bool = False) -> Result:
        """Execute until the steps are done, the sink says stop or `stop()` does; then close what is open.

        hold: begin only when the hooks to record have been asked for, so that programs can be attached before.
        Raises MegascopeError when the graph cannot go on, which would be a defect of the schedule.
        """
        misc, spec = self._sim.misc, self.spec
        teller = Teller(sink.say)
        patience = Patience(lambda: stop() or sink.stopped)
        monitors = self._monitors = Monitors(self._sim, self._account, self._programs, sink, patience)
        monitors.serve()
        while hold and not monitors.asked and not patience.stopping():
            sink.show(np.zeros((len(self.monitor), Worker.WORDS), np.int64), T_ZERO, 0, T_ZERO // self.epoch_ns)
            time.sleep(NAP_S)
            monitors.serve()
        started = time.monotonic()
        until = 1 << 62
        # A step whose batch has been told is begun, so that nothing is told that was not.
        while misc[state.LOADED] or not patience.stopping():
            if spec.pace:
                until = T_ZERO + int((time.monotonic() - started) * 1e9 * spec.pace)
            why = _run(self._sim.address, until)
            if why == simulate.FINISHED:
                break
            if why == simulate.NEED_STEP:
                self._load_step(teller)
                monitors.step = self._step
            elif why == simulate.EPOCH:
                monitors.close_epoch()
            elif why == simulate.STUCK:
                raise MegascopeError("the host engine cannot go on", f"step {self._step} waits for itself", "report it")
            elif why == simulate.PACED:
                monitors.passed = until
                time.sleep(NAP_S)
            if why == simulate.STAGE_FULL or monitors.late:
                monitors.publish()
        monitors.end()
        if self._step >= 0:
            self.injector.ran(self._step, self._begun_ns, int(misc[state.T_NOW]))
            teller.end(self._step)
        return self._result()

    def _settings(self) -> None:
        misc, spec = self._sim.misc, self.spec
        misc[state.STEPS_LEFT] = spec.steps or 1 << 62
        misc[state.T_NOW], misc[state.NEXT_EPOCH] = T_ZERO, (T_ZERO // self.epoch_ns + 1) * self.epoch_ns
        misc[state.WAKE], misc[state.GAP], misc[state.LINK] = WAKE_NS, GAP_NS, LINK_NS
        misc[state.LINK_BYTES], misc[state.SEED] = LINK_BYTES_PER_NS, spec.seed * 16
        misc[state.JITTER], misc[state.LOSE] = round(spec.jitter * state.ONE), round(spec.lose * state.SURE)

    def _load_step(self, teller: Teller) -> None:
        """The simulation stands before an iteration: give it the batch, and tell who is in it."""
        sim, misc = self._sim, self._sim.misc
        t = int(sim.memory[misc[state.HEAP_AT]])
        if self._step >= 0:
            self.injector.ran(self._step, self._begun_ns, int(misc[state.T_NOW]))
        self._step += 1
        self._begun_ns = t
        if self._plan is None or self._step >= self._plan.first + self._plan.steps:
            self._plan = self._serving.plan(PLANNED)
            self._attended = self._plan.attended()
        plan = self._plan
        i = self._step - plan.first
        slot = sim.slot
        slot[:-1, state.S_REQUEST], slot[:-1, state.S_TOKENS] = plan.request[i], plan.tokens[i]
        slot[:-1, state.S_ATTENDED] = self._attended[i]
        slot[-1, state.S_REQUEST] = 1 << 31 | int(plan.request_set[i])
        slot[-1, state.S_TOKENS] = plan.tokens[i].sum()
        rows = slice(int(plan.row_ptr[i]), int(plan.row_ptr[i + 1]))
        count = rows.stop - rows.start
        sim.rows[:count, 0], sim.rows[:count, 1] = plan.row_slot[rows], plan.row_request[rows]
        sim.rows[:count, 2] = plan.row_state[rows]
        misc[state.ROWS], misc[state.STEP] = count, self._step
        self._inject()
        teller.begin(self._step, t, plan.told_at(self._step))
        misc[state.LOADED] = 1

    def _inject(self) -> None:
        active = self.injector.active(self._step)
        if active is self._active:
            return
        self._active, sim, misc = active, self._sim, self._sim.misc
        sim.factor[:] = np.rint(active.class_factor * state.ONE)
        sim.dep[:, state.D_POSTPONE] = active.dep_postpone_ns
        sim.task[:, state.T_STARVE] = active.task_starve_ns
        sim.late[:] = active.round_delay_ns[: len(sim.late)]
        misc[state.OVER_WORKER], misc[state.OVER_SHARE] = active.over_worker, round(active.over_share * state.SURE)
        misc[state.SKEW_EXPERT], misc[state.SKEW_SHARE] = active.skew_expert, round(active.skew_share * state.SURE)

    def _result(self) -> Result:
        worker, account = self._sim.worker, self._account
        return Result(
            steps=self._step + 1,
            t=int(self._sim.misc[state.T_NOW]),
            fired=int(worker[:, state.SEQ].sum()),
            lost=int(lost_by_hook(self._sim).sum()),
            dequeued=int(account.dequeued.sum()),
            written=account.written,
            ring_lost=account.ring_lost,
            truth=self.injector.truth(),
        )
