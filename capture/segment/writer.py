"""The engine's side of a segment: the one process that maps the file.

Every area is offered as a numpy view over the mapping. Stores to them are aligned words, so that a reader's copy of a
word is old or new. Who may write which area is said in `layout`.
"""

from __future__ import annotations

import errno
import mmap
import os
import time
import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...store.errors import Exit, MegascopeError
from ...store.tables import RING_ROW
from . import host_ring, side
from .guard import Guard
from .layout import Layout
from .process import start_time
from .program_words import SLOTS, Reply, Slot
from .words import FITS, PAGE, WORD, Control, Cursor, State, Status, Summary, Worker

U64 = npt.NDArray[np.uint64]
U8 = npt.NDArray[np.uint8]


class SegmentWriter:
    """A mapped segment. Create it with `create`; use it as a context manager, or call `close`.

    columns: name → [monitors, blocks, block_rows], the event rings. generation: [monitors, blocks]. cursor:
    [monitors, 32]. worker: [workers, 16]. summary: [monitors, summary_rows, 16]. status: [512]. All u64 but the
    columns, whose types are the ABI row's. tail, summary_tail, map_tail: u8 [monitors], written by the drainer.
    Where the engine runs programs: requests: the page that is written from outside; slots: [32, 16] words; reply: [64];
    images, map_rings: bytes, the latter [monitors, map_bytes]. fd: of the file, for locks (`file_lock`).
    """

    def __init__(self, path: Path, layout: Layout, memory: mmap.mmap, fd: int) -> None:
        self.path, self.layout, self.fd, self._memory = path, layout, fd, memory
        self._let_go = weakref.finalize(self, os.close, fd)
        self._guard = Guard(memory)
        m, w = layout.monitors, layout.workers
        self.bytes: U8 = np.frombuffer(memory, np.uint8)
        self.status = self._words(layout.status_offset, PAGE // WORD)
        self.cursor = self._words(layout.cursor_offset, m, Cursor.WORDS)
        self.worker = self._words(layout.worker_offset, w, Worker.WORDS)
        self.summary = self._words(layout.summary_offset, m, layout.summary_rows, Summary.WORDS)
        self.tail = self.bytes[layout.tails_offset : layout.tails_offset + m]
        self.summary_tail = self.bytes[layout.tails_offset + m : layout.tails_offset + 2 * m]
        self.control = self.bytes[layout.control_offset : layout.control_offset + PAGE]
        self.columns = {c.name: self._column(c.name) for c in RING_ROW}
        self.generation = self._strided(np.dtype("<u8"), 0, (m, layout.blocks))
        self._host = self.bytes[layout.host_offset : layout.host_offset + layout.host_bytes]
        self._host_bounds = deque([0])
        slots = SLOTS if layout.program_slots else 0
        self.requests = self._bytes(layout.requests_offset, PAGE if slots else 0)
        self.map_tail = self._bytes(layout.map_tails_offset, m if slots else 0)
        self.slots = self._words(layout.slots_offset, slots, Slot.WORDS)
        self.reply = self._words(layout.reply_offset, Reply.WORDS if slots else 0)
        self.images = self._bytes(layout.images_offset, layout.image_bytes if slots else 0)
        self.map_rings = self._bytes(layout.map_offset, m * layout.map_bytes).reshape(m, layout.map_bytes)

    @classmethod
    def create(
        cls,
        path: Path,
        layout: Layout,
        *,
        side_tables: Mapping[str, pa.Table] | None = None,
        engine: Mapping[str, Any] | None = None,
        record: bool = False,
    ) -> SegmentWriter:
        """Make the file (mode 0600, all its pages allocated) and map it.

        side_tables: the compiler's tables. engine: what the engine says of itself, JSON-able; keys `kind`, `params`
        and `perturbation` go to the trace's manifest. record: begin with every exported hook recorded, before any
        drainer asks for it. Raises MegascopeError when the file exists or does not fit.
        """
        area, entries = side.pack(side_tables or {}, engine or {})
        pid = os.getpid()
        layout = replace(
            layout,
            side_bytes=len(area),
            side_entries=entries,
            engine_pid=pid,
            engine_start=start_time(pid),
            created_ns=time.time_ns(),
        )
        what = f"cannot create segment {path}"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError as e:
            raise MegascopeError(what, "it exists", "give another path, or remove it (megascope ls --prune)") from e
        except OSError as e:
            raise MegascopeError(what, e.strerror or str(e), "give a path in a directory you may write to") from e
        try:
            os.posix_fallocate(fd, 0, layout.file_bytes)
            memory = mmap.mmap(fd, layout.file_bytes)
        except OSError as e:
            os.close(fd)
            path.unlink(missing_ok=True)
            size = f"{layout.file_bytes:,} bytes"
            if e.errno in (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT):
                raise MegascopeError(
                    what, f"{size} do not fit there", "free space, or use fewer or smaller blocks"
                ) from e
            raise MegascopeError(what, f"{e.strerror} ({size})") from e
        writer = cls(path, layout, memory, fd)
        writer.bytes[layout.side_offset : layout.side_offset + len(area)] = np.frombuffer(area, np.uint8)
        writer.status[Status.STATE] = State.STARTING
        writer.status[Status.HEARTBEAT] = time.time_ns()
        if record:
            writer.cursor[:, Cursor.MASK] = layout.exported
            writer.control[Control.MASK : Control.MASK + 8].view("<u8")[0] = layout.exported
        # The header comes last: a reader that finds its magic finds everything before it.
        page = np.frombuffer(layout.pack(), np.uint8)
        writer.bytes[8:PAGE] = page[8:]
        writer.bytes[:8].view("<u8")[0] = page[:8].view("<u8")[0]
        return writer

    def _bytes(self, offset: int, length: int) -> U8:
        return self.bytes[offset : offset + length] if length else np.empty(0, np.uint8)

    def _words(self, offset: int, *shape: int) -> U64:
        count = int(np.prod(shape))
        if not count:
            return np.empty(shape, np.uint64)
        return self.bytes[offset : offset + count * WORD].view("<u8").reshape(shape)

    def _strided(self, dtype: np.dtype[Any], offset: int, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        lay = self.layout
        strides = (lay.blocks * lay.block_bytes, lay.block_bytes, dtype.itemsize)[: len(shape)]
        return np.ndarray(shape, dtype, self._memory, lay.ring_offset + offset, strides)

    def _column(self, name: str) -> npt.NDArray[Any]:
        lay = self.layout
        dtype = RING_ROW.dtype[name]
        return self._strided(dtype, lay.column_offset(name), (lay.monitors, lay.blocks, lay.block_rows))

    @property
    def cut(self) -> bool:
        """Whether somebody has cut the file short: what is written from then on, nobody reads."""
        return self._guard.cut

    def check_whole(self) -> None:
        """At the end of a run: raises MegascopeError with Exit.INCOMPLETE when somebody has cut the file short."""
        if self.cut:
            what, why = f"segment {self.path} lost what was told", "somebody cut the file short; the run went on unseen"
            raise MegascopeError(what, why, code=Exit.INCOMPLETE)

    # --- what the drainer asks for -----------------------------------------------------------------------------

    @property
    def mask(self) -> int:
        """Hooks that the drainer wants recorded; hold it against `commit` before use."""
        return int(self.control[Control.MASK : Control.MASK + 8].view("<u8")[0])

    @property
    def commit(self) -> int:
        return int(self.control[Control.COMMIT])

    @property
    def stop(self) -> bool:
        return bool(self.control[Control.STOP])

    # --- what the host side tells ------------------------------------------------------------------------------

    def beat(self, t: int, step: int, state: State = State.RUNNING) -> None:
        """A sign of life: device time `t` in ns, and the engine's iteration."""
        self.status[Status.T_NOW] = t
        self.status[Status.STEP] = step
        self.status[Status.HEARTBEAT] = time.time_ns()
        self.status[Status.STATE] = state

    def end(self, t: int, step: int, *, failed: bool = False) -> None:
        """The orderly end: after the last rows and records have been published."""
        self.beat(t, step, State.FAILED if failed else State.ENDED)

    def clock_fit(self, host_ns: int, device_ns: int, error_ns: int) -> None:
        """One reading of both clocks: at CLOCK_REALTIME host_ns it was device_ns, give or take error_ns."""
        n = int(self.status[Status.FIT_COUNT])
        at = Status.FIT_FIRST + 4 * (n % FITS)
        self.status[at : at + 4] = (host_ns, device_ns, error_ns, host_ns ^ device_ns ^ error_ns)
        self.status[Status.FIT_COUNT] = n + 1

    def say(self, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Tell rows of an engine table through the host ring; the oldest records give way when it is full."""
        for record in host_ring.records(table, rows):
            size = self.layout.host_bytes
            left = size - int(self.status[Status.HOST_HEAD]) % size
            if left < len(record):
                self._append(host_ring.filler(left))
            self._append(record)

    def _append(self, record: bytes) -> None:
        size, head = self.layout.host_bytes, int(self.status[Status.HOST_HEAD])
        after = head + len(record)
        while self._host_bounds and self._host_bounds[0] < after - size:
            self._host_bounds.popleft()
        self.status[Status.HOST_BASE] = self._host_bounds[0] if self._host_bounds else head
        self.status[Status.HOST_RESERVED] = after
        at = head % size
        self._host[at : at + len(record)] = np.frombuffer(record, np.uint8)
        self.status[Status.HOST_HEAD] = after
        self._host_bounds.append(after)

    def close(self, *, unlink: bool = False) -> None:
        """Let go of the mapping's views; the pages go with the last of them. unlink: remove the file too."""
        self._let_go()
        self.fd = -1
        if unlink:
            self.path.unlink(missing_ok=True)

    def __enter__(self) -> SegmentWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
