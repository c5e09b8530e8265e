"""Reading a segment that may be torn, truncated or hostile: copy, check, then use.

Nothing here maps the file. Words that only grow are read twice and the smaller value counts, so that a copy that was
torn between two stores cannot claim more than was published.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...store.errors import MegascopeError, Refused
from ...store.tables import NOW
from . import side
from .layout import Layout
from .process import alive
from .words import FITS, PAGE, WORD, Control, Cursor, State, Status, Worker

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]
TOP = 1 << 63
_STATES = {int(s): s for s in State}


class Truncated(Refused):
    """The file became shorter than its header says, while it was being read."""


@dataclass(frozen=True)
class EngineStatus:
    """A snapshot of the status page. `alive`: the very process that made the segment still runs."""

    state: State | None
    alive: bool
    heartbeat_ns: int
    t_now: int
    step: int

    @property
    def text(self) -> str:
        """In one word: running, ended, failed, died or starting."""
        if self.state in (State.ENDED, State.FAILED):
            return self.state.name.lower()
        if not self.alive:
            return "died"
        return self.state.name.lower() if self.state else "unclear"

    @property
    def live(self) -> bool:
        """Whether it runs, or is about to."""
        return self.text in ("running", "starting")


@dataclass(frozen=True)
class ClockFit:
    """At CLOCK_REALTIME `host_ns` the device's clock stood at `device_ns`, give or take `error_ns`."""

    host_ns: int
    device_ns: int
    error_ns: int


class SegmentReader:
    """A segment opened for reading. `tables` are the compiler's side tables, `engine` the engine's word of itself."""

    def __init__(self, path: Path, fd: int, layout: Layout) -> None:
        self.path, self.fd, self.layout = path, fd, layout
        self.what = f"cannot read segment {path}"
        area = self.read(layout.side_offset, layout.side_bytes)
        self.tables, self.engine = side.unpack(area, layout.side_entries, self.what)
        self.monitor_of, self.rank_of = self._places()

    @classmethod
    def open(cls, path: Path, *, write: bool = False) -> SegmentReader:
        """Open and check a segment; `write` also lets `poke` write to it.

        Raises Refused for anything that is not a whole segment of this ABI, MegascopeError when it cannot be opened.
        """
        what = f"cannot read segment {path}"
        try:
            fd = os.open(path, (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as e:
            raise MegascopeError(what, e.strerror or str(e), "megascope ls shows the live ones") from e
        try:
            size = os.fstat(fd).st_size
            try:
                page = os.pread(fd, PAGE, 0)
            except OSError as e:
                raise Refused(what, e.strerror or str(e), "name a file that megascope ls shows") from e
            layout = Layout.unpack(page, what)
            if size < layout.file_bytes:
                raise Refused(
                    what, f"it has {size:,} of {layout.file_bytes:,} bytes", "it was truncated; restart the engine"
                )
            return cls(path, fd, layout)
        except BaseException:
            os.close(fd)
            raise

    def _places(self) -> tuple[U64, U64]:
        """Monitor and rank of each worker, from the side table; all of monitor 0 and rank 0 where it has none."""
        monitor, rank = np.zeros(self.layout.workers, np.uint64), np.zeros(self.layout.workers, np.uint64)
        table = self.tables["workers"]
        worker = table["worker"].to_numpy()
        monitors, ranks = table["monitor"].to_numpy(), table["rank"].to_numpy()
        for values, count, name in (
            (worker, self.layout.workers, "worker"),
            (monitors, self.layout.monitors, "monitor"),
            (ranks, self.layout.ranks, "rank"),
        ):
            if len(values) and not (values.min() >= 0 and values.max() < count):
                raise Refused(self.what, f"its side table workers names a {name} outside 0 to {count - 1}")
        monitor[worker], rank[worker] = monitors, ranks
        return monitor, rank

    def read(self, offset: int, length: int) -> bytes:
        """A copy of part of the file. Raises Truncated when the file has become too short for it."""
        out = os.pread(self.fd, length, offset)
        while 0 < len(out) < length:
            more = os.pread(self.fd, length - len(out), offset + len(out))
            if not more:
                break
            out += more
        if len(out) < length:
            raise Truncated(
                self.what, f"it was cut to {os.fstat(self.fd).st_size:,} bytes while being read", "restart the engine"
            )
        return out

    def words(self, offset: int, *shape: int) -> U64:
        """A copy of aligned words."""
        count = int(np.prod(shape))
        return np.frombuffer(self.read(offset, count * WORD), "<u8").reshape(shape)

    def growing(self, offset: int, *shape: int) -> U64:
        """A copy of words that only grow: of two readings the smaller."""
        first = self.words(offset, *shape)
        return np.minimum(first, self.words(offset, *shape))

    def cursors(self) -> U64:
        """[monitors, 32] words, each no newer than published."""
        return self.growing(self.layout.cursor_offset, self.layout.monitors, Cursor.WORDS)

    def heads(self, word: Cursor, ring: str) -> I64:
        """[monitors] a head of every monitor's `ring` (its name, for people).

        Raises Refused for a head that no ring can have reached.
        """
        heads = self.cursors()[:, word]
        if (heads >= 1 << 62).any():
            worst = int(heads.argmax())
            raise Refused(self.what, f"the head of {ring} {worst} is {int(heads[worst])}", "restart the engine")
        return heads.astype(np.int64)

    def freed(self, heads: I64, unit: int, offset: int) -> tuple[I64, U8]:
        """Where the last drainer stopped, given `heads` in rows and rings freed in units of `unit` rows.

        ([monitors] rows freed, [monitors] tails as they stand at `offset`). A tail is known modulo 256 units, and a
        ring holds fewer.
        """
        tails = np.frombuffer(self.read(offset, self.layout.monitors), np.uint8)
        behind = (heads // unit - tails.astype(np.int64)) % 256
        return np.maximum(heads // unit - behind, 0) * unit, tails

    def workers(self) -> U64:
        """[workers, 16] words as they stand; a now record is valid only if its check agrees."""
        return self.words(self.layout.worker_offset, self.layout.workers, Worker.WORDS)

    def status(self) -> EngineStatus:
        """What the engine says of itself. Raises Truncated when any part of the file has been cut off."""
        self.whole()
        page = self.words(self.layout.status_offset, PAGE // WORD)
        raw = int(page[Status.STATE])
        return EngineStatus(
            _STATES.get(raw),
            alive(self.layout.engine_pid, self.layout.engine_start),
            int(page[Status.HEARTBEAT]),
            int(page[Status.T_NOW]),
            int(page[Status.STEP]),
        )

    def clock_fits(self) -> list[ClockFit]:
        """The clock fits kept, by host time. A fit whose check word disagrees (it is being written) is left out."""
        page = self.words(self.layout.status_offset, PAGE // WORD)
        kept = min(int(page[Status.FIT_COUNT]), FITS)
        quads = page[Status.FIT_FIRST : Status.FIT_FIRST + 4 * kept].reshape(-1, 4).tolist()
        return sorted(
            (ClockFit(h, d, e) for h, d, e, c in quads if h ^ d ^ e == c and h < TOP), key=lambda f: f.host_ns
        )

    def lease(self) -> tuple[int, int]:
        """(pid, start time) of the drainer that wrote the lease last; it may be gone."""
        words = self.words(self.layout.control_offset + Control.LEASE_PID, 2)
        return int(words[0]), int(words[1])

    def now(self) -> pa.Table:
        """What every worker waits for, as rows of table `now`. A record that is being written is left null."""
        lines, beats = self.workers(), self.cursors()[:, Cursor.HEARTBEAT]
        t, task, dep, seen_wanted, check = (lines[:, w] for w in range(5))
        valid = (t != 0) & ((t ^ task ^ dep ^ seen_wanted) == check)
        rows: dict[str, Any] = {
            "rank": pa.array(self.rank_of.astype(np.int16)),
            "worker": pa.array(np.arange(len(lines), dtype=np.int32)),
            "waiting": pa.array(valid),
        }
        for name, values in (("t", t), ("task", task), ("dep", dep), ("seen", seen_wanted >> np.uint64(32))):
            rows[name] = pa.array(values.astype(np.int64), mask=~valid)
        rows["wanted"] = pa.array((seen_wanted & np.uint64(0xFFFF_FFFF)).astype(np.int64), mask=~valid)
        rows["fired"] = pa.array(lines[:, Worker.FIRED].astype(np.int64))
        rows["heartbeat"] = pa.array(beats[self.monitor_of].astype(np.int64))
        return pa.table(rows, schema=NOW.schema)

    def whole(self) -> None:
        """Raises Truncated unless the file is as long as its header says."""
        size = os.fstat(self.fd).st_size
        if size < self.layout.file_bytes:
            raise Truncated(self.what, f"it was cut to {size:,} bytes while in use", "restart the engine")

    def poke(self, offset: int, data: bytes) -> None:
        """Write a few bytes; only into a file that is still whole, lest a truncated one grow again."""
        self.whole()
        os.pwrite(self.fd, data, offset)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> SegmentReader:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
