"""Deriving tasks, waits and tiles from sealed parts, in the background and at the end of a recording or repair.

A step makes its rows in memory, writes the derived parts, names them in the manifest together with the number of the
part they come from, and only then forgets the rows. Before the manifest speaks the files are litter, which the next
attempt replaces; nothing of the events depends on any of it.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from . import derived, durable, heap, parquet
from .manifest import Manifest
from .pairing import Derived, Pairer
from .pairing_rows import NONE, Rows
from .retiring import Retirer
from .tables import EVENTS, HOOK_BY_NAME, TASKS, WAITS
from .tiles import TileBuilder

_RETRY_S = 1.0
_TRIM_ROWS = 1 << 19
"""Of a part from which deriving leaves enough free memory behind to be worth the milliseconds of giving it back."""

Tables = dict[str, pa.Table]
"""By derived table."""


def _nothing(_: int) -> None:
    """For who does not count bytes."""


class Derivation:
    """Derives from one part after the other. `keep_state`: so that readers can go on from the last step."""

    def __init__(
        self, folder: Path, manifest: Manifest, on_bytes: Callable[[int], None] = _nothing, *, keep_state: bool
    ) -> None:
        """`on_bytes` is told how many bytes more a step has put on disk."""
        self._folder, self._manifest, self._on_bytes, self._keep_state = folder, manifest, on_bytes, keep_state
        self._pairer = Pairer(derived.context(folder, manifest.snapshot()))
        self._tiles = TileBuilder()
        self._scratch: Rows = {}
        """of the columns of a part, from step to step"""
        self._made: Tables | None = None
        self._unreadable = self._open_waits = self._left_out = 0

    def step(self, stream: str, entry: dict[str, Any], *, over: bool = False) -> None:
        """Derive from the next sealed part of `events` or `intervals`; `over`: it is to be retired, so only pass it.

        Raises OSError: then the same step is to be tried again. A part that cannot be read is passed over and counted.
        """
        number = derived.number_of(entry["file"])
        if self._made is None and over:
            self._made = {}
        if self._made is None:
            self._made = self._make(stream, entry)
        self._write(stream, number, self._made)

    def finish(self) -> None:
        """Write what is left open, as the last part of each table. Raises OSError: then it is to be tried again."""
        if self._made is None:
            last = self._pairer.finish()
            self._open_waits = int(pc.sum(last.waits["open"]).as_py() or 0)
            self._made = self._from_events(last)
            rest = self._tiles.finish()
            self._made["tiles"] = pa.concat_tables([self._made["tiles"], rest])
        entry = self._manifest.snapshot().get(derived.KEY) or derived.fresh()
        self._write(EVENTS.name, entry["upto"] + 1, self._made, finished=True)

    def _make(self, stream: str, entry: dict[str, Any]) -> Tables:
        path = self._folder / stream / entry["file"]
        if stream == EVENTS.name:
            columns = derived.read_events(path, entry, self._scratch)
            if columns is not None:
                return self._from_events(self._pairer.feed(columns))
        elif (rows := derived.read_part(path, stream, entry)) is not None:
            lost = TileBuilder()
            tiles = lost.feed(_NO_TASKS, _NO_WAITS, NONE, rows)
            self._left_out += lost.left_out
            return {"tiles": tiles}
        self._unreadable += 1
        return {}

    def _from_events(self, d: Derived) -> Tables:
        return {"tasks": d.tasks, "waits": d.waits, "tiles": self._tiles.feed(d.tasks, d.waits, d.frontier)}

    def _write(self, stream: str, number: int, made: Tables, *, finished: bool = False) -> None:
        entries = {
            name: parquet.write_derived(self._folder, name, derived.file_name(name, stream, number), rows)
            for name, rows in made.items()
            if rows.num_rows
        }
        before = state = (self._manifest.snapshot().get(derived.KEY) or {}).get("state")
        if stream == EVENTS.name:
            state = self._state(number) if self._keep_state and not finished else None

        def change(m: dict[str, Any]) -> None:
            d = m.setdefault(derived.KEY, derived.fresh())
            for name, entry in entries.items():
                d[name]["parts"] = sorted([*d[name]["parts"], entry], key=derived.by_origin)
            d["counts"], d["finished"] = self._counts(), finished
            if not finished:
                d[derived.SOURCES[stream]] = number
            d.pop("state", None)
            if state is not None:
                d["state"] = state

        self._manifest.commit(change)
        self._made = None
        if before is not None and before != state:
            derived.state_path(self._folder, before["file"]).unlink(missing_ok=True)
        bytes_of = [e["bytes"] for e in (*entries.values(), state) if e is not None]
        self._on_bytes(sum(bytes_of) - (before["bytes"] if before is not None else 0))

    def _state(self, number: int) -> dict[str, Any] | None:
        """Keep what is carried over, so that a reader can go on from here; returns its entry in the manifest."""
        state = self._pairer.state()
        if len(state) > derived.STATE_MOST:
            return None
        entry: dict[str, Any] = {"file": f"open-{number:06d}.state", "tiles_until": self._tiles.until}
        path = derived.state_path(self._folder, entry["file"])
        with durable.replacing(path) as temporary:
            temporary.write_bytes(state)
            size, crc = parquet.file_crc(temporary)
        return entry | {"bytes": size, "crc32": crc}

    def _counts(self) -> dict[str, int]:
        tasks, waits = self._pairer.counts
        missing = {f"missing_{name}": tasks.missing[HOOK_BY_NAME[name].id] for name in _TASK_HOOKS}
        return missing | {
            "tasks": tasks.tasks,
            "waits": waits.waits,
            "missing_wait": waits.missing_wait,
            "missing_resume": waits.missing_resume - self._open_waits,
            "open_waits": self._open_waits,
            "duplicates": tasks.duplicates + waits.duplicates,
            "impossible_ranges": tasks.impossible_ranges,
            "given_up": tasks.given_up,
            "hurried": tasks.hurried,
            "left_out": self._tiles.left_out + self._left_out,
            "unreadable": self._unreadable,
        }


_TASK_HOOKS = ("ready", "assign", "start", "complete")
_NO_TASKS, _NO_WAITS = TASKS.schema.empty_table(), WAITS.schema.empty_table()


class Deriver(threading.Thread):
    """Derives in the background from what has been sealed, while the recording and its sealing go on."""

    def __init__(self, derivation: Derivation, retirer: Retirer | None = None) -> None:
        """retirer: told to retire whenever there is a step more that it may take."""
        super().__init__(name="megascope-derive", daemon=True)
        self._derivation, self._retirer = derivation, retirer
        self._wake = threading.Condition()
        self._stopped = False
        self._waiting: deque[tuple[str, dict[str, Any]]] = deque()
        self._failed: Exception | None = None

    @property
    def owed(self) -> int:
        """About how many bytes are still to be written: derived parts are no larger than those they come from."""
        with self._wake:
            return 0 if self._failed else sum(entry["bytes"] for _, entry in self._waiting)

    def submit(self, stream: str, entry: dict[str, Any]) -> None:
        """Hand over a sealed part. Parts of a stream come in the order of their numbers."""
        if stream in derived.SOURCES:
            with self._wake:
                self._waiting.append((stream, entry))
                self._wake.notify()

    def stop(self) -> None:
        """End the thread after the step in hand."""
        with self._wake:
            self._stopped = True
            self._wake.notify()
        if self.is_alive():
            self.join()

    def finish(self) -> None:
        """Derive all that waits and what is left open, in the caller's thread, after `stop`.

        Raises OSError, and what a step of the thread has failed with.
        """
        if self._failed:
            raise self._failed
        while self._waiting:
            self._step(*self._waiting[0])
            self._waiting.popleft()
        self._derivation.finish()

    def run(self) -> None:
        while True:
            with self._wake:
                while not self._stopped and not self._waiting:
                    self._wake.wait()
                if self._stopped:
                    return
                stream, entry = self._waiting[0]
            try:
                self._step(stream, entry)
            except OSError:
                # Most likely a full disk: the events are safe, and the end of the recording tries once more.
                with self._wake:
                    self._wake.wait(_RETRY_S)
                continue
            except Exception as error:
                # The recording goes on without; who ends it is told.
                self._give_up(error)
                return
            with self._wake:
                self._waiting.popleft()
            if self._retirer is not None and stream == EVENTS.name:
                # Where there is no room for a manifest the parts stay a while longer.
                with suppress(OSError):
                    self._retirer.step()

    def _step(self, stream: str, entry: dict[str, Any]) -> None:
        self._derivation.step(stream, entry, over=self._is_over(stream, entry))
        if stream == EVENTS.name and entry["rows"] >= _TRIM_ROWS:
            heap.trim()

    def _is_over(self, stream: str, entry: dict[str, Any]) -> bool:
        """Whether a part has left a rolling recording's window while it waited."""
        if self._retirer is None or stream != EVENTS.name:
            return False
        return self._retirer.is_over(entry["t_min"], entry["t_max"])

    def _give_up(self, error: Exception) -> None:
        self._failed = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)) if isinstance(error, MemoryError) else error
        if self._retirer is not None:
            self._retirer.underived = True
