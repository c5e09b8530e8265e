"""The host's side of a kernel that includes capture/device/megascope.cuh: see docs/integrate.md."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ....store.errors import MegascopeError, Usage
from ....store.tables import COMPILER_TABLES, HOOK_BY_NAME, WORKERS
from ...segment.layout import Layout
from ...segment.side import from_json
from ...segment.words import Clock, Policy
from .clock import TICK_NS, LoneClock
from .compilation import Hooks, cubin
from .device_segment import DeviceSegment, ring_blocks, worker_table
from .libraries import load_kernels
from .memory import HostWords
from .monitors import MonitorMemory, Sizes, launch_monitors
from .parameters import DEP_ROW, LINE_BYTES, NO_SLOT, ORDER_LINES, SEGMENT, SEGMENT_SYMBOL, TASK_ROW, fill

WATCHED = 8
"""Workers of a monitor block: fewer than it can watch, so that none waits long for its turn."""
BLOCK_ROWS = 512
POLL_S = 0.0005
_WHAT = "cannot watch the kernel"

Rows = list[dict[str, Any]]


class Scope:
    """A segment for a kernel of yours, and all that its hooks and monitors need. A context manager.

        with Scope(cupy, module, "/dev/shm/mine", tables, blocks=132, hooks=("start", "complete")) as scope:
            scope.begin(stream)
            …launch the kernel into the stream, with scope.threads more in each block…
            scope.follow(stream)

    module: loaded, built with MS_HOOKS 1 (transport "warp") or 3 ("block"). tables: what the compiler knows, by name
    (`megascope schema task_classes` and so on), each Arrow or rows as in schema.json; `workers` is made where it is not
    given. blocks: of the launch. roles: workers of a block: 1, or 2 where a scheduler warp fires too. ranks: among
    which the blocks are divided evenly: rank r has those from r * blocks / ranks. hooks: those that the kernel fires.
    shared_bytes: of a block, all that it has, for which monitor blocks must leave room; None: they leave all they can.
    end: the dependency that ends an iteration, 0: none. seconds: the device-side deadline. record: record everything
    from the first event on, whether anyone drains or not.

    Raises Usage where tables or sizes do not fit, MegascopeError when the segment cannot be made.
    """

    def __init__(
        self,
        cupy: Any,
        module: Any,
        path: str | Path,
        tables: Mapping[str, pa.Table | Rows],
        *,
        blocks: int,
        hooks: Iterable[str],
        roles: int = 1,
        ranks: int = 1,
        transport: str = "warp",
        shared_bytes: int | None = None,
        end: int = 0,
        seconds: float = 60.0,
        epoch_ms: float = 100.0,
        ring_mb: float = 64.0,
        arena_mb: float = 256.0,
        policy: str = "drop",
        name: str = "kernel",
        record: bool = False,
        compiled: Callable[[str, str, Hooks], Path] = cubin,
    ) -> None:
        if ranks < 1 or blocks % ranks:
            raise Usage(_WHAT, f"{blocks} blocks are not {ranks} ranks of as many each", "launch a multiple of them")
        self.cupy, self._module = cupy, module
        self._blocks_of_its_own, self._shared_bytes = transport == "block", shared_bytes
        self.threads = 0 if self._blocks_of_its_own else 32
        """of a block, beyond the kernel's own: its monitor warp"""
        sizes, workers = Sizes.of(cupy, module), roles * blocks
        self.monitors = -(-workers // min(WATCHED, sizes.watched)) if self._blocks_of_its_own else blocks
        self._host = HostWords(cupy, 1)
        self._memory = MonitorMemory(cupy, sizes, self.monitors, blocks, workers, ranks, int(arena_mb * 1e6))
        self._orders = cupy.zeros(len(ORDER_LINES) * LINE_BYTES // 4, np.uint32)
        device = cupy.cuda.Device(0)
        clock = cupy.RawModule(path=str(compiled("clock.cu", f"sm_{device.compute_capability}", Hooks.QUEUE)))
        self._clock = LoneClock(clock, self._host)
        layout = Layout(
            workers=workers,
            monitors=self.monitors,
            ranks=ranks,
            block_rows=BLOCK_ROWS,
            blocks=ring_blocks(ring_mb, BLOCK_ROWS, self.monitors),
            clock=Clock.GLOBALTIMER,
            clock_tick_ns=TICK_NS,
            epoch_ns=int(epoch_ms * 1e6),
            policy=Policy[policy.upper()],
            exported=sum(1 << _hook(h) for h in set(hooks)),
            program_slots=16,
            image_bytes=1 << 20,
            map_bytes=1 << 18,
            arena_bytes=int(arena_mb * 1e6),
            name=name,
        )
        self._side = _side_tables(tables, worker_table(blocks, roles, self.monitors, ranks))
        tasks, deps = _task_rows(self._side), _dep_rows(self._side)
        self._tables = [cupy.asarray(rows.view(np.uint8).reshape(-1)) for rows in (tasks, deps)]
        self._its = DeviceSegment(
            cupy, Path(path), layout, self._memory, self._host,
            side_tables=self._side, engine={"kind": "cuda", "params": {"transport": transport}}, record=record,
        )  # fmt: skip
        self._values = self._memory.parameters | self._its.memory.parameters
        self._values |= {
            "host": self._host.words_pointer,
            "orders": int(self._orders.data.ptr),
            "tasks": int(self._tables[0].data.ptr),
            "deps": int(self._tables[1].data.ptr),
            "n_tasks": len(tasks) - 1,
            "n_deps": len(deps) - 1,
            "task_bytes": TASK_ROW.itemsize,
            "dep_bytes": DEP_ROW.itemsize,
            "end_dep": end,
            "limit_ns": int(seconds * 1e9),
            "blocks": blocks,
            "rank_blocks": blocks // ranks,
            "ranks": ranks,
            "roles": roles,
        }
        self._begun = self._running = False

    def begin(self, stream: Any) -> None:
        """Before the launch: everything that hooks and monitors count with is set, and monitor blocks are launched."""
        self._read_clock(stream)
        self._host.reset()
        self._memory.reset(stream, self._its.mask)
        self._orders.data.memset_async(0, self._orders.nbytes, stream)
        if self._its.mask:
            at = ORDER_LINES.index("control") * LINE_BYTES // 4
            self._orders[at : at + 1].set(np.array([self._its.mask], np.uint32), stream=stream)
        fill(self.cupy, self._module, SEGMENT_SYMBOL, SEGMENT, self._values, stream)
        stream.synchronize()
        self._beside = self.cupy.cuda.Stream(non_blocking=True)
        if self._blocks_of_its_own:
            load_kernels(self._module)
            launch_monitors(self.cupy, self._module, self._beside, self.monitors, self._shared_bytes)
        self._begun = self._running = True

    def follow(self, stream: Any) -> None:
        """Serve whoever attaches until the kernel in `stream` has ended and its monitors have told everything.

        Raises MegascopeError when the kernel failed; the segment keeps what was published.
        """
        failed = True
        try:
            while not (stream.done and self._beside.done):
                self._its.poll(self._step)
                time.sleep(POLL_S)
            stream.synchronize()
            self._beside.synchronize()
            self._running = False
            self._its.programs.end()
            self._read_clock(stream)
            failed = False
        except self.cupy.cuda.runtime.CUDARuntimeError as e:
            self._running = False
            raise MegascopeError("the kernel failed", str(e), "the segment keeps what was published") from e
        finally:
            self._begun = False
            self._its.end(self._step, failed=failed)

    def _read_clock(self, stream: Any) -> None:
        self._its.segment.clock_fit(*self._clock.read(stream, self._its.pinger))

    @property
    def _step(self) -> int:
        """The iteration that runs, as `ComputeHooks::step` tells it."""
        return max(self._host.steps_begun - 1, 0)

    @property
    def cut(self) -> bool:
        """Whether somebody has cut the segment's file short: the kernel goes on, and nobody sees it any more."""
        return self._its.segment.cut

    def close(self) -> None:
        """Give everything back; the segment's file stays, for whoever records from it."""
        if self._begun:
            self._its.end(self._step, failed=True)
        self._its.close(running=self._running)

    def __enter__(self) -> Scope:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _hook(name: str) -> int:
    if name not in HOOK_BY_NAME:
        raise Usage(_WHAT, f"there is no hook {name!r}", "see megascope schema hooks")
    return HOOK_BY_NAME[name].id


def _side_tables(given: Mapping[str, pa.Table | Rows], workers: pa.Table) -> dict[str, pa.Table]:
    """The given tables as declared. workers: as the device counts them."""
    known = {t.name: t for t in COMPILER_TABLES}
    out: dict[str, pa.Table] = {}
    for name, rows in given.items():
        if name not in known:
            raise Usage(_WHAT, f"there is no side table {name!r}", f"known are {', '.join(known)}")
        try:
            out[name] = from_json(rows, name) if isinstance(rows, list) else rows.select(known[name].schema.names)
            out[name] = out[name].cast(known[name].schema)
        except (pa.ArrowException, KeyError, ValueError) as e:
            raise Usage(_WHAT, f"side table {name!r}: {e}", f"see megascope schema {name}") from e
    keys = ["worker", "rank"]
    told = out.setdefault(WORKERS.name, workers)
    if not told.select(keys).sort_by("worker").equals(workers.select(keys)):
        why = f"side table {WORKERS.name!r} has not its {workers.num_rows} workers, or not on their ranks"
        raise Usage(_WHAT, why, "see blocks, roles and ranks, or leave it out")
    return out


def _numbered(table: pa.Table | None, key: str) -> pa.Table | None:
    """The table by its key, which must count from 1."""
    if table is None or table.num_rows == 0:
        return None
    table = table.sort_by(key)
    if table[key].to_pylist() != list(range(1, table.num_rows + 1)):
        raise Usage(_WHAT, f"{key} does not count from 1 to {table.num_rows}", "number them so")
    return table


def _dep_rows(side: Mapping[str, pa.Table]) -> NDArray[np.void]:
    """[n + 1] DEP_ROW; entry 0 is no dependency."""
    table = _numbered(side.get("dependencies"), "id")
    out = np.zeros(1 + (table.num_rows if table else 0), DEP_ROW)
    if table:
        out["wanted"][1:], out["kind"][1:] = table["wanted"].to_numpy(), table["kind"].to_numpy()
    return out


def _task_rows(side: Mapping[str, pa.Table]) -> NDArray[np.void]:
    """[n + 1] TASK_ROW; entry 0 is no task."""
    table = _numbered(side.get("static_tasks"), "index")
    out = np.zeros(1 + (table.num_rows if table else 0), TASK_ROW)
    out["slot"] = NO_SLOT
    if table:
        kind = _dep_rows(side)["kind"]
        dep = table["dep"].to_numpy()
        if dep.min() < 0 or dep.max() >= len(kind):
            raise Usage(_WHAT, f"static_tasks wait for dependency {dep.max()}", f"dependencies has {len(kind) - 1}")
        for field, column in (("tile", "tile"), ("task_class", "task_class"), ("dep", "dep")):
            out[field][1:] = table[column].to_numpy()
        out["dep_kind"][1:] = kind[dep]
    return out
