"""The megakernel on one device: its data, its builds, its launches."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....store.errors import MegascopeError, Usage
from ..build import build_graph
from ..faults import Injector
from ..schedule import static_schedule
from ..serving import planned
from . import tables, weights
from .clock import LoneClock
from .compilation import Hooks, cubin
from .memory import HostWords, SegmentMemory
from .monitors import MonitorMemory, Sizes, launch_monitors
from .parameters import ENGINE, ENGINE_SYMBOL, LEAVE, LINE_BYTES, ORDER_LINES, RUN_LINES, SEGMENT, SEGMENT_SYMBOL, fill
from .ranks import Ranks
from .settings import Settings

FIRING = (Hooks.QUEUE, Hooks.DEVICE)
"""Builds with monitors."""
THREADS = {Hooks.NONE: 160, Hooks.QUEUE: 192, Hooks.NATIVE: 160, Hooks.DEVICE: 160}
NATIVE_SLOTS = 1 << 14
ROLES = 2
"""Workers of a block: its compute worker and its scheduler worker."""
Compiled = Callable[[str, str, Hooks], Path]


@dataclass(frozen=True)
class Build:
    """A loaded build of the kernel and what it takes of a multiprocessor."""

    module: Any
    function: Any
    registers: int
    local_bytes: int
    shared_bytes: int
    """of a block, the operators' buffer included"""
    sizes: Sizes | None
    """of what its monitors keep; None without"""


class Megakernel:
    """All that lives on the device for a run. Launches are one at a time; each begins from step 0.

    keep_every: the logits of every that many steps are kept for a check; 0 keeps none. compiled: gives the path of a
    source that is made for an architecture and a build of the hooks.
    """

    def __init__(self, cupy: Any, settings: Settings, *, keep_every: int = 0, compiled: Compiled = cubin) -> None:
        tables.refuse(settings.model)
        self.cupy, self.settings, self._compiled = cupy, settings, compiled
        device = cupy.cuda.Device(0)
        self.architecture = f"sm_{device.compute_capability}"
        self.rank_blocks = tables.rank_blocks(settings.model, int(device.attributes["MultiProcessorCount"]))
        """blocks of one rank; those of rank r begin at r * rank_blocks"""
        self.blocks = self.rank_blocks * settings.model.ranks
        self.graph = build_graph(settings.model)
        self.schedule = static_schedule(self.graph, self.rank_blocks)
        self.plan = planned(settings.load, settings.steps)
        self.injector = Injector(settings.faults, self.graph, self.blocks, dynamic=settings.dynamic, engine="cuda")
        self.host = HostWords(cupy, settings.steps)
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.monitor_stream = cupy.cuda.Stream(non_blocking=True)
        self.firing = Hooks.DEVICE if settings.transport == "block" else Hooks.QUEUE
        """the build that records"""
        self.monitor_count = settings.monitor_blocks if self.firing == Hooks.DEVICE else self.blocks
        self.keep_every = keep_every
        self.capacity = 1 << (self.graph.tasks // settings.model.ranks - 1).bit_length()
        served = tables.serving_tables(self.plan, settings.model)
        faults = tables.fault_tables(self.injector, settings.steps)
        host = tables.graph_tables(self.graph, self.schedule) | served.arrays | faults
        host["rotary"] = weights.rotary(settings.model)
        self.weights: dict[str, Any] = weights.draw(settings.model, settings.seed, cupy.random)
        self._arrays = {name: self._upload(values) for name, values in host.items()} | self.weights
        self._arrays |= self._scratch()
        self.ranks = Ranks(
            cupy,
            settings.model,
            self.weights,
            cache_rows=served.cache_rows,
            steps=settings.steps,
            keep_routes=keep_every > 0,
            run=int(self._arrays["run"].data.ptr),
        )
        self._cache_rows = served.cache_rows
        self._builds: dict[Hooks, Build] = {}
        self._monitors: MonitorMemory | None = None

    # --- data ---------------------------------------------------------------------------------------------------

    def _upload(self, values: NDArray[Any]) -> Any:
        flat = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
        return self.cupy.asarray(flat)

    def _scratch(self) -> dict[str, Any]:
        m, cp, g = self.settings.model, self.cupy, self.graph
        words = {
            "counters": g.deps + 1,
            "satisfied": g.deps + 1,
            "queues": self.blocks * 2 * LINE_BYTES // 4,
            "entries": self.blocks * self.capacity * 4,
            "run": len(RUN_LINES) * LINE_BYTES // 4,
            "orders": len(ORDER_LINES) * LINE_BYTES // 4,
            "native": self.blocks * ROLES * NATIVE_SLOTS * 2,
        }
        kept = cp.zeros(max(self.kept_steps * m.slots * m.vocab, 1), np.float32)
        return {"kept_logits": kept} | {name: cp.zeros(n, np.uint32) for name, n in words.items()}

    @cached_property
    def kept_steps(self) -> int:
        return -(-self.settings.steps // self.keep_every) if self.keep_every else 0

    # --- builds -------------------------------------------------------------------------------------------------

    def build(self, hooks: Hooks) -> Build:
        """A build of the kernel, compiled and loaded when first asked for; never while a launch runs."""
        if hooks not in self._builds:
            module = self.cupy.RawModule(path=str(self._compiled("megakernel.cu", self.architecture, hooks)))
            function = module.get_function("megakernel")
            sizes = Sizes.of(self.cupy, module) if hooks in FIRING else None
            shared = int(self.cupy.ndarray((1,), np.uint32, module.get_global("shared_bytes")).get()[0])
            shared += tables.operator_bytes(self.settings.model)
            function.max_dynamic_shared_size_bytes = shared
            self._builds[hooks] = Build(module, function, function.num_regs, function.local_size_bytes, shared, sizes)
        return self._builds[hooks]

    def monitors(self) -> MonitorMemory:
        """Memory of the monitors, allocated when first asked for."""
        if self._monitors is None:
            sizes, arena = self.build(self.firing).sizes, int(self.settings.arena_mb * 1e6)
            assert sizes is not None
            workers = ROLES * self.blocks
            if workers > self.monitor_count * sizes.watched:
                least = -(-workers // sizes.watched)
                raise Usage("cannot start the cuda engine", f"monitor_blocks={self.monitor_count}", f"{least} at least")
            ranks = self.settings.model.ranks
            self._monitors = MonitorMemory(self.cupy, sizes, self.monitor_count, self.blocks, workers, ranks, arena)
        return self._monitors

    def perturbation(self) -> dict[str, Any]:
        """What recording takes of the device, and the state of its clocks."""
        with_hooks, without = self.build(self.firing), self.build(Hooks.NONE)
        return {
            "registers": with_hooks.registers,
            "registers_without_hooks": without.registers,
            "shared_bytes": with_hooks.shared_bytes,
            "shared_bytes_without_hooks": without.shared_bytes,
            "local_bytes": with_hooks.local_bytes,
            "transport": self.settings.transport,
            "threads": THREADS[self.firing],
            "threads_without_hooks": THREADS[Hooks.NONE],
            "clocks": clock_state(),
        }

    # --- launches -----------------------------------------------------------------------------------------------

    def launch(
        self,
        hooks: Hooks,
        segment: SegmentMemory | None = None,
        *,
        dynamic: bool | None = None,
        mask: int = 0,
        steps: int | None = None,
        hold: bool = False,
    ) -> None:
        """Start the kernel and return. Everything it counts begins from zero.

        mask: hooks to record from the start. dynamic, steps: other than the settings', fewer steps only. hold: the
        first step waits for `host.go()`.
        """
        build = self.build(hooks)
        self.prepare(build.module, segment, dynamic=dynamic, mask=mask, steps=steps, hold=hold)
        if hooks == Hooks.DEVICE:
            launch_monitors(self.cupy, build.module, self.monitor_stream, self.monitor_count, build.shared_bytes)
        with self.stream:
            build.function((self.blocks,), (THREADS[hooks],), (), shared_mem=build.shared_bytes)

    def prepare(
        self,
        module: Any,
        segment: SegmentMemory | None = None,
        *,
        dynamic: bool | None = None,
        mask: int = 0,
        steps: int | None = None,
        hold: bool = False,
    ) -> None:
        """Set a module's constants and all that it counts with. Outputs are poisoned: what nobody writes is NaN."""
        values = {name: int(array.data.ptr) for name, array in self._arrays.items()} | self._sizes()
        values["dynamic"] = self.settings.dynamic if dynamic is None else dynamic
        values["steps"] = self.settings.steps if steps is None else min(steps, self.settings.steps)
        if segment:
            values |= self.monitors().parameters | segment.parameters
            self.monitors().reset(self.stream, mask)
        self.host.reset(hold=hold)
        for name in ("counters", "satisfied", "queues", "entries", "run", "orders"):
            self._arrays[name].data.memset_async(0, self._arrays[name].nbytes, self.stream)
        self._arrays["kept_logits"].data.memset_async(0xFF, self._arrays["kept_logits"].nbytes, self.stream)
        self.ranks.reset(self.stream)
        self._line("orders", ORDER_LINES.index("control")).set(np.array([mask], np.uint32), stream=self.stream)
        for symbol, record in ((SEGMENT_SYMBOL, SEGMENT), (ENGINE_SYMBOL, ENGINE)):
            fill(self.cupy, module, symbol, record, values, self.stream)
        self.stream.synchronize()

    def _sizes(self) -> dict[str, int]:
        s = self.settings
        return tables.sizes(self.graph) | {
            "host": self.host.words_pointer,
            "step_begun": self.host.begun_pointer,
            "limit_ns": int(s.seconds * 1e9),
            "epoch_ns": int(s.epoch_ms * 1e6),
            "blocks": self.blocks,
            "rank_blocks": self.rank_blocks,
            "shards": self.ranks.pointer,
            "ended": int(self._arrays["counters"].data.ptr) + 4 * self.graph.end,
            "roles": ROLES,
            "steps": s.steps,
            "capacity": self.capacity,
            "pressure": s.pressure,
            "faulty": bool(s.faults),
            "cache_rows": self._cache_rows,
            "keep_every": self.keep_every,
            "native_slots": NATIVE_SLOTS,
        }

    @property
    def native_log(self) -> tuple[int, int]:
        """Device address of the compiler-native records, and slots of each worker."""
        return int(self._arrays["native"].data.ptr), NATIVE_SLOTS

    def _line(self, name: str, index: int) -> Any:
        """The word of a line in an array of lines."""
        at = index * LINE_BYTES // 4
        return self._arrays[name][at : at + 1]

    @property
    def running(self) -> bool:
        """Whether the launch goes on. Raises MegascopeError when it has failed."""
        try:
            return not (self.stream.done and self.monitor_stream.done)
        except self.cupy.cuda.runtime.CUDARuntimeError as e:
            raise MegascopeError("the megakernel failed", str(e), "the segment keeps what was published") from e

    def wait(self) -> str:
        """Until the launch has ended; how: done, stopped or deadline."""
        try:
            self.stream.synchronize()
            self.monitor_stream.synchronize()
        except self.cupy.cuda.runtime.CUDARuntimeError as e:
            raise MegascopeError("the megakernel failed", str(e), "the segment keeps what was published") from e
        return LEAVE[int(self._line("run", RUN_LINES.index("leave")).get()[0])]

    @cached_property
    def clock(self) -> LoneClock:
        """For readings while nothing of this runs."""
        path = self._compiled("clock.cu", self.architecture, Hooks.QUEUE)
        return LoneClock(self.cupy.RawModule(path=str(path)), self.host)

    # --- results ------------------------------------------------------------------------------------------------

    def used_tokens(self) -> NDArray[np.uint32]:
        """[steps, slots] input tokens of the last launch, the same on every rank."""
        return self.ranks.used_tokens(0)

    def kept_logits(self) -> NDArray[np.float32]:
        """[kept steps, slots, vocab] of the last launch; NaN where nothing was written."""
        kept: NDArray[np.float32] = self._arrays["kept_logits"].get()
        return kept.reshape(self.kept_steps, self.settings.model.slots, self.settings.model.vocab)


def clock_state() -> str:
    """Clocks of the device as nvidia-smi shows them; empty where it does not."""
    query = "--query-gpu=clocks.sm,clocks.max.sm,clocks.mem,clocks_event_reasons.active"
    try:
        done = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout.strip() else ""
