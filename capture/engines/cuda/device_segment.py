"""A kernel's segment: made before its launch, followed by this process while it runs, closed when it has ended."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ....store.tables import RING_ROW, WORKERS
from ...segment.layout import Layout
from ...segment.sink import SegmentSink
from ...segment.unread import Unread
from ...segment.words import BLOCK_HEADER, MAX_BLOCKS, Control, Cursor
from ...segment.writer import SegmentWriter
from .clock import Pinger
from .memory import HostWords, SegmentMemory
from .monitors import MonitorMemory
from .programs import Programs

BEAT_S = 0.01
FIT_S = 1.0
READINGS = 8
"""Of the clocks, while the kernel runs; the elected monitor answers."""


def ring_blocks(ring_mb: float, block_rows: int, monitors: int) -> int:
    """Blocks of each monitor's event ring, of ring_mb (10^6 bytes) in all."""
    one = BLOCK_HEADER + block_rows * RING_ROW.dtype.itemsize
    return int(min(max(ring_mb * 1e6 // (monitors * one), 2), MAX_BLOCKS))


def worker_table(blocks: int, roles: int, monitors: int, ranks: int = 1) -> pa.Table:
    """`workers` as the device counts them (`struct Segment`): worker b is block b's compute worker, blocks + b its
    scheduler worker where there are two roles. Monitor m drains every monitors-th from m; each rank has blocks / ranks.
    """
    ids = np.arange(roles * blocks)
    columns: dict[str, Any] = {
        "worker": ids,
        "monitor": ids % monitors,
        "sm": np.full(len(ids), -1),
        "role": ["compute"] * blocks + ["scheduler"] * (len(ids) - blocks),
        "rank": ids % blocks // (blocks // ranks),
    }
    return pa.table(columns, schema=WORKERS.schema)


class DeviceSegment:
    """What the host has to do for a segment that a kernel writes. Call `poll` often from one thread while it runs.

    layout: its sizes. side_tables, engine, record: as for SegmentWriter.create, which see for what is raised.
    """

    def __init__(
        self,
        cupy: Any,
        path: Path,
        layout: Layout,
        monitors: MonitorMemory,
        host: HostWords,
        *,
        side_tables: Mapping[str, pa.Table],
        engine: Mapping[str, Any],
        record: bool = False,
    ) -> None:
        self.segment = SegmentWriter.create(path, layout, side_tables=side_tables, engine=engine, record=record)
        self._unread = Unread(self.segment, path)
        self.memory = SegmentMemory(cupy, self.segment)
        self.mask = layout.exported if record else 0
        """hooks to record from the first event on"""
        self.pinger = Pinger(host)
        rank, told = np.zeros(layout.workers, np.int64), side_tables[WORKERS.name]
        rank[told["worker"].to_numpy()] = told["rank"].to_numpy()
        self.programs = Programs(SegmentSink(self.segment), monitors, host, self.device_now, layout, rank)
        self._beat = self._fit = 0.0

    def poll(self, step: int) -> None:
        """Serve whoever attaches, and tell that engine and kernel are alive. step: the one that runs."""
        self.programs.poll()
        now = time.monotonic()
        if now - self._beat >= BEAT_S:
            self._beat = now
            self.segment.beat(self.device_now(), step)
            self._unread.free()
        if now - self._fit >= FIT_S:
            self._fit = now
            reading = self.pinger.burst(READINGS)
            if reading:
                self.segment.clock_fit(*reading)

    def recorded(self) -> bool:
        """Whether a recorder has said which hooks it wants, and all monitors follow it."""
        commit = int(self.segment.control[Control.COMMIT])
        return commit != 0 and bool((self.segment.cursor[:, Cursor.ACK] == commit).all())

    def end(self, step: int, *, failed: bool) -> None:
        """After the last row. step: the last."""
        self.segment.end(self.device_now(), step, failed=failed)

    def close(self, *, running: bool) -> None:
        """Give the memory back to the driver, unless the kernel still runs and writes to it; the file stays."""
        if not running:
            self.memory.release()
        self._unread.close()
        self.segment.close()

    def device_now(self) -> int:
        """Device time, as the youngest heartbeat of a monitor shows it, ns."""
        return int(self.segment.cursor[:, Cursor.HEARTBEAT].max())
