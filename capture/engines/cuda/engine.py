"""A run of the CUDA engine: segment, launch, and the host side that follows the kernel."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa

from ....store.tables import HOOK_BY_NAME, WORKERS
from ...segment.layout import Layout
from ...segment.words import Clock, Cursor, Worker
from ..faults import GroundTruth
from ..serving import Teller, Told
from ..side_tables import compiler_tables
from .clock import TICK_NS
from .device_segment import DeviceSegment, ring_blocks, worker_table
from .kernel import ROLES, Megakernel

EXPORTED = (
    "ready", "assign", "start", "complete", "wait", "resume", "release", "send", "receive", "request", "step",
    "pressure",
)  # fmt: skip
POLL_S = 0.0005


def exported(dynamic: bool, ranks: int = 1) -> int:
    """Hooks that the kernel fires, as a mask; a static schedule assigns nothing and has no queues, and one rank has
    nobody to send to."""
    names = [n for n in EXPORTED if dynamic or n not in ("assign", "pressure")]
    names = [n for n in names if ranks > 1 or n not in ("send", "receive")]
    return sum(1 << HOOK_BY_NAME[n].id for n in names)


def side_tables(kernel: Megakernel) -> dict[str, pa.Table]:
    """The compiler's tables by name; that of the workers has the scheduler workers too."""
    n = kernel.blocks
    schedule = None if kernel.settings.dynamic else kernel.schedule
    out = compiler_tables(kernel.graph, kernel.rank_blocks, schedule, np.arange(n), np.full(n, -1))
    return out | {WORKERS.name: worker_table(n, ROLES, kernel.monitor_count, kernel.settings.model.ranks)}


class CudaEngine:
    """One run, from a new segment to its end.

    record: record every exported hook from the first step, whether anyone drains or not. hold: begin the first step
    when a recorder has said which hooks it wants, so that programs can be attached before.
    Raises MegascopeError when the segment does not fit or the kernel does not load.
    """

    def __init__(self, kernel: Megakernel, path: Path, *, record: bool = False, hold: bool = False) -> None:
        self.kernel, self._held = kernel, hold
        s = kernel.settings
        layout = Layout(
            workers=ROLES * kernel.blocks,
            monitors=kernel.monitor_count,
            block_rows=s.block_rows,
            blocks=ring_blocks(s.ring_mb, s.block_rows, kernel.monitor_count),
            summary_rows=s.summary_rows,
            host_bytes=1 << 22,
            clock=Clock.GLOBALTIMER,
            clock_tick_ns=TICK_NS,
            epoch_ns=int(s.epoch_ms * 1e6),
            policy=s.ring_policy,
            exported=exported(s.dynamic, s.model.ranks),
            ranks=s.model.ranks,
            program_slots=s.program_slots,
            telemetry=int(s.telemetry),
            image_bytes=1 << 20,
            map_bytes=int(s.map_kb * 1024) // 1024 * 1024,
            arena_bytes=int(s.arena_mb * 1e6),
            name="cuda megakernel",
        )
        engine = {"kind": "cuda", "params": s.params(), "perturbation": kernel.perturbation()}
        self._its = DeviceSegment(
            kernel.cupy, path, layout, kernel.monitors(), kernel.host,
            side_tables=side_tables(kernel), engine=engine, record=record,
        )  # fmt: skip
        self.segment, self.memory, self.programs = self._its.segment, self._its.memory, self._its.programs
        self._teller = Teller(self.segment.say)
        self._told: dict[int, list[Told]] = defaultdict(list)
        for told in kernel.plan.told:
            self._told[told.step].append(told)
        self._step = 0
        self.stop = threading.Event()
        """set it (from a signal handler, say) for an orderly end after the step that runs"""

    def run(self) -> str:
        """Launch, follow, end. How it ended: done, stopped or deadline."""
        self._fit_alone()
        self.kernel.launch(self.kernel.firing, self.memory, mask=self._its.mask, hold=self._held)
        failed = True
        try:
            self._follow()
            how = self.kernel.wait()
            self._hear()
            self.programs.end()
            failed = how in ("deadline", "overtaken")
            self._fit_alone()
        finally:
            self._teller.end(max(self._step - 1, 0))
            self._its.end(max(self._step - 1, 0), failed=failed)
        return how

    def close(self) -> None:
        """Give the segment's memory back to the driver; the file stays. Not while the kernel still writes to it."""
        self._its.close(running=self.kernel.running)

    def truth(self) -> GroundTruth:
        """What the fault controls did. It is not in the segment."""
        return self.kernel.injector.truth()

    def counts(self) -> dict[str, int]:
        """What the run came to: steps begun, events fired, lost in queues, taken out, rows written and refused.

        Where somebody has cut the segment short, the steps alone: the rest is the device's to count, and stood there.
        """
        if self.segment.cut:
            return {"steps": self._step}
        worker, cursor = self.segment.worker, self.segment.cursor
        return {
            "steps": self._step,
            "fired": int(worker[:, Worker.FIRED].sum()),
            "lost": int(worker[:, Worker.LOST].sum()),
            "dequeued": int(worker[:, Worker.DEQUEUED].sum()),
            "written": int(cursor[:, Cursor.HEAD].sum()),
            "ring_lost": int(cursor[:, Cursor.RING_LOST].sum()),
        }

    def _follow(self) -> None:
        while self.kernel.running:
            if self.stop.is_set():
                self.kernel.host.ask_stop()
            if self._held and self._its.recorded():
                self._held = False
                self.kernel.host.go()
            self._hear()
            self._its.poll(max(self._step - 1, 0))
            time.sleep(POLL_S)

    def _hear(self) -> None:
        """Tell what has become known with the steps that have begun since."""
        begun, times = self.kernel.host.steps_begun, self.kernel.host.begun
        for step in range(self._step, begun):
            self._teller.begin(step, int(times[step]), self._told.pop(step, ()))
            if step:
                self.kernel.injector.ran(step - 1, int(times[step - 1]), int(times[step]))
        self._step = begun

    def _fit_alone(self) -> None:
        """A reading of both clocks while no megakernel runs."""
        self.segment.clock_fit(*self.kernel.clock.read(self.kernel.stream, self._its.pinger))
