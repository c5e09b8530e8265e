"""Recording into a trace directory: what `capture` calls, from one thread."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from . import durable, map_streams, parquet, retention, seal, spool
from . import manifest as _manifest
from .budget import FULL, RESERVE_FILE, Gate, Reserve, Stretch
from .derive import Derivation, Deriver
from .directory import begin, make_room
from .ending import Ending
from .errors import MegascopeError, Refused
from .gather import Gathered
from .ledger import Ledger
from .loss import LOSS_BY_NAME
from .retiring import Retirer
from .tables import EVENTS, LOSS, RING_ROW, TOLD_TABLES, Table

ROTATE_S = 1.0
ROTATE_LEAST_ROWS = 1 << 16
"""A spool file is finished after a second once it has this many rows; a slow engine gets few files, not many."""

_UNWRITTEN_MOST = 1 << 20
_MAKE_ROOM_S = 0.1
_NO_TIMES = (1 << 64, -1)
_T = RING_ROW.names.index("t")
_TOLD = {t.name for t in TOLD_TABLES}


class TraceWriter:
    """A trace that is being recorded. Every method is called by one thread; sealing and deriving run in two others.

    Batches given to it must own their memory: they are kept until there are enough for one write.
    """

    def __init__(
        self,
        path: Path,
        book: _manifest.Manifest,
        lock: int | None,
        max_bytes: int | None,
        sync: bool,
        keep_ns: int | None,
    ) -> None:
        self.path = path
        self.rows: dict[str, int] = dict.fromkeys(_manifest.SPOOLED, 0)
        """Rows put into the spool so far, by stream and engine table."""
        self._tables = {n: parquet.BY_NAME[n] for n in _manifest.SPOOLED}
        self._manifest, self._lock_fd, self._sync = book, lock, sync
        content = book.snapshot()
        self._folder = path / spool.FOLDER
        self._reserve = Reserve(self._folder / RESERVE_FILE, max_bytes)
        self._gate = Gate(max_bytes)
        self._spool = {
            n: spool.SpoolWriter(self._folder, n, parquet.spooled_schema(t), content["id"], sync=sync)
            for n, t in self._tables.items()
        }
        self._gathered = {n: Gathered() for n in _manifest.SPOOLED}
        self._began = dict.fromkeys(_manifest.SPOOLED, 0.0)
        self._ledger = Ledger(sum(t["bytes"] for t in content["tables"].values()))
        self._retirer = None
        if keep_ns is not None:
            self._retirer = Retirer(
                path, book, self._ledger, keep_ns, max_bytes, lambda: self._bytes_due, self._unsealed
            )
        self._times = _NO_TIMES
        """of the events in the spool file that is being written"""
        self._dropped: tuple[int, int] | None = None
        """device times of raw rows that were dropped and not told of by `take_dropped`"""
        self._room_again = 0.0
        self._sealer = seal.Sealer(path, book, self._on_sealed, self._retirer)
        self._deriver = Deriver(Derivation(path, book, self._ledger.add, keep_state=True), self._retirer)
        self._finished = False

    @classmethod
    def create(
        cls,
        path: Path,
        manifest: dict[str, Any],
        tables: Mapping[str, pa.Table],
        *,
        force: bool = False,
        max_bytes: int | None = None,
        sync: bool = False,
        keep_ns: int | None = None,
    ) -> TraceWriter:
        """Create the directory of a trace and begin to record.

        `manifest`: any of `engine`, `clock`, `programs`, `perturbation`, and `name`. `tables`: the compiler's side
        tables, written at once. `max_bytes`: the disk budget. `sync`: fsync every batch. `force` replaces a trace
        that is there, and nothing else. `keep_ns`: a rolling recording, which keeps events of the last so many ns of
        device time and what is pinned. Raises Refused or MegascopeError, and then nothing has been left behind.
        """
        make_room(path, force)
        lock = None
        try:
            path.mkdir()
            lock = durable.lock_directory(path)
            for folder in (spool.FOLDER, "tables", *_manifest.STREAM_NAMES):
                (path / folder).mkdir()
            writer = cls(path, begin(path, manifest, tables, max_bytes, keep_ns), lock, max_bytes, sync, keep_ns)
        except BaseException as error:
            if lock is not None:
                os.close(lock)
            if isinstance(error, FileExistsError):
                raise Refused(f"cannot create {path}", "something was put there meanwhile") from None
            shutil.rmtree(path, ignore_errors=True)
            if isinstance(error, OSError):
                why = error.strerror or str(error)
                raise MegascopeError(f"cannot create {path}", why, "free space or choose another place") from None
            raise
        writer._sealer.start()
        writer._deriver.start()
        return writer

    @property
    def bytes_written(self) -> int:
        """Bytes on disk for this trace: spool, sealed and derived."""
        return self._ledger.net_bytes + sum(w.total for w in self._spool.values())

    def _unsealed(self) -> list[spool.SpoolFile]:
        return self._sealer.unsealed(EVENTS.name)

    @property
    def _bytes_due(self) -> int:
        """Bytes on disk once all that is sealed has been derived from."""
        return self.bytes_written + self._deriver.owed

    @property
    def retired_rows(self) -> int:
        """Rows of events that were sealed, and have left the window of a rolling recording since."""
        return retention.retired_rows(self._manifest.snapshot())

    @property
    def retired_early_rows(self) -> int:
        """Of those, rows that the budget of bytes made go before their time."""
        return retention.retired_rows(self._manifest.snapshot(), "early")

    @property
    def pinned_to(self) -> int | None:
        """Device time after which nothing is pinned any more, once the budget of pinned rows is spent; before, None."""
        return None if self._retirer is None else self._retirer.pinned_to

    def pin(self, begin: int, end: int) -> tuple[int, int] | None:
        """Keep all rows of [begin, end] (device ns, inclusive) of a rolling recording, those to come too.

        Returns what is kept, which begins later where the window had moved on; None where nothing is, because the
        budget of pinned rows is spent. A recording that is not rolling keeps everything anyway.
        """
        return (begin, end) if self._retirer is None else self._retirer.pin(begin, end)

    @property
    def sealing_lag_rows(self) -> int:
        """Event rows in the spool that are not sealed yet."""
        return self.rows[EVENTS.name] - self._ledger.sealed_events

    @property
    def raw_stopped(self) -> str | None:
        """Why raw rows are being dropped: `disk_budget`, `disk_full` or None."""
        return self._gate.stopped

    def take_dropped(self) -> tuple[int, int] | None:
        """First and last device time, ns, of the raw rows that were dropped since this was asked last; None for none.

        It is known of rows once `flush` has been called.
        """
        some, self._dropped = self._dropped, None
        return some

    def append(self, stream: str, batch: pa.RecordBatch) -> None:
        """Add rows to a stream: ring rows to `events`, else rows as the stream's table declares them.

        Raises Refused for another schema, MegascopeError when the disk fails in another way than being full.
        """
        if stream not in self._tables or stream in _TOLD:
            raise Refused(f"cannot append to {stream}", "there is no such stream")
        self._gather(stream, batch)

    def declare(self, table: Table) -> None:
        """Add a stream for a map of a program; one that is there already must be the same.

        Raises Refused for another of that name, and for more than a trace may have; MegascopeError as `append`.
        """
        known = self._tables.get(table.name)
        if known is not None:
            if known != table:
                raise Refused(f"cannot declare {table.name}", "there is another stream of that name")
            return

        def change(m: dict[str, Any]) -> None:
            m.setdefault(map_streams.KEY, {})[table.name] = map_streams.entry(table)
            m["streams"][table.name] = {"parts": []}
            m["spool_sealed"][table.name] = 0

        try:
            (self.path / parquet.folder_of(table.name)).mkdir(parents=True, exist_ok=True)
            self._with_room(lambda: self._manifest.commit(change))
        except OSError as error:
            raise MegascopeError(f"cannot write to {self.path}", error.strerror or str(error)) from None
        trace_id = self._manifest.snapshot()["id"]
        schema = parquet.spooled_schema(table)
        self._spool[table.name] = spool.SpoolWriter(self._folder, table.name, schema, trace_id, sync=self._sync)
        self._gathered[table.name], self._began[table.name], self.rows[table.name] = Gathered(), 0.0, 0
        self._tables[table.name] = table

    def upsert(self, table: str, batch: pa.RecordBatch) -> None:
        """Add rows to an engine table; of rows with the same key the last counts. Raises as `append`."""
        if table not in _TOLD:
            raise Refused(f"cannot upsert into {table}", "the engine has no such table")
        self._gather(table, batch)

    def lose(
        self,
        kind: str,
        count: int,
        *,
        rank: int | None = None,
        worker: int | None = None,
        monitor: int | None = None,
        hook: int | None = None,
        t_begin: int | None = None,
        t_end: int | None = None,
        detail: str = "",
    ) -> None:
        """Record that `count` of what `kind` counts are missing, and where. Raises KeyError for an unknown kind."""
        row = {
            "kind": kind, "severity": LOSS_BY_NAME[kind].severity, "rank": rank, "worker": worker, "monitor": monitor,
            "hook": hook, "count": count, "t_begin": t_begin, "t_end": t_end, "detail": detail,
        }  # fmt: skip
        self._gather(LOSS.name, pa.RecordBatch.from_pylist([row], schema=LOSS.schema))

    def flush(self) -> None:
        """Put everything that is gathered into the spool, where it survives the death of this process."""
        for stream in self._tables:
            self._write(stream)
            if self._is_due(stream):
                self._rotate(stream)

    def update(self, **fields: Any) -> None:
        """Merge into the manifest (keys of objects; lists are replaced) and write it.

        Raises Refused for a key that is the store's own or for a value that could not be read again.
        """
        if unknown := set(fields) - set(_manifest.GIVEN):
            raise Refused("cannot update the manifest", f"{', '.join(sorted(unknown))} is not the recorder's")

        def change(m: dict[str, Any]) -> None:
            for key, value in fields.items():
                if isinstance(value, dict):
                    m[key].update(value)
                else:
                    m[key] = value

        self._with_room(lambda: self._manifest.commit(change))

    def finish(self, reason: str, **end: Any) -> None:
        """Seal what is in the spool, write the end record (`reason` and `end`), derive the rest, let go of the trace.

        A trace that could not be sealed whole because the disk is full keeps the rest in its spool, readable, and is
        `unsealed`. Raises MegascopeError when the end could not be recorded.
        """
        if self._finished:
            return
        try:
            self._finish({"reason": reason, **end})
        except OSError as error:
            raise MegascopeError(
                f"cannot finish {self.path}",
                error.strerror or str(error),
                "what is in it stays readable; run megascope check --repair when there is room",
            ) from None
        finally:
            self.close()

    def close(self) -> None:
        """Let go of the trace as it is: unsealed, without an end record."""
        self._finished = True
        self._sealer.stop()
        self._deriver.stop()
        self._let_go()

    def _gather(self, stream: str, batch: pa.RecordBatch) -> None:
        if batch.schema != parquet.spooled_schema(self._tables[stream]):
            raise Refused(f"cannot append to {stream}", "the batch has other columns than the stream")
        if self._finished:
            raise MegascopeError(f"cannot append to {stream}", "the recording has ended")
        if self._gathered[stream].add(batch):
            self._write(stream)

    def _write(self, stream: str) -> None:
        """Put what is gathered of a stream into its spool file."""
        gathered = self._gathered[stream]
        if (batch := gathered.joined()) is None:
            return
        if stream == EVENTS.name:
            for piece in gathered.pieces():
                self._write_raw(piece)
            return
        try:
            self._with_room(lambda: self._spool_batch(stream, batch))
        except OSError as error:
            if error.errno not in FULL:
                raise MegascopeError(f"cannot write to {self.path}", error.strerror or str(error)) from None
            if gathered.rows > _UNWRITTEN_MOST:
                raise MegascopeError(f"cannot write to {self.path}", "the disk is full", "free space") from None
            return
        gathered.clear()

    def _write_raw(self, batch: pa.RecordBatch) -> None:
        """Put events into their spool file, or count them as dropped."""
        if self._retirer is not None:
            self._retirer.saw(batch.column(_T).to_numpy())
            lacks = self._gate.stopped != "disk_full" and self._gate.lacks(self._bytes_due, batch.nbytes) > 0
            if lacks and time.monotonic() >= self._room_again:
                self._make_room(self._retirer, batch.nbytes)
        if self._gate.admits(self._bytes_due, batch.nbytes):
            try:
                self._spool_batch(EVENTS.name, batch)
                return
            except OSError as error:
                if error.errno not in FULL:
                    raise MegascopeError(f"cannot write to {self.path}", error.strerror or str(error)) from None
                self._gate.full()
        for stretch in self._gate.drop(batch):
            self._lose_stretch(stretch)
        t, before = batch.column(_T).to_numpy(), self._dropped or _NO_TIMES
        self._dropped = min(before[0], int(t.min())), max(before[1], int(t.max()))

    def _make_room(self, retirer: Retirer, size: int) -> None:
        """Let the oldest rows go rather than the newest, sealed or not: sealing may be far behind."""
        with suppress(OSError):
            retirer.step(self._gate.lacks(self._bytes_due, size))
            self._sealer.pass_over()
        if self._gate.lacks(self._bytes_due, size) > 0:
            # Nothing is left that may go. It costs a manifest, so not with every batch.
            self._room_again = time.monotonic() + _MAKE_ROOM_S

    def _spool_batch(self, stream: str, batch: pa.RecordBatch) -> None:
        writer = self._spool[stream]
        if writer.rows == 0:
            self._began[stream] = time.monotonic()
            if stream == EVENTS.name:
                self._times = _NO_TIMES
        writer.write(batch)
        if stream == EVENTS.name and self._retirer is not None:
            t = batch.column(_T).to_numpy()
            self._times = min(self._times[0], int(t.min())), max(self._times[1], int(t.max()))
        self.rows[stream] += batch.num_rows
        if writer.full or (self._retirer is not None and self._is_due(stream)):
            self._rotate(stream)

    def _is_due(self, stream: str) -> bool:
        """Should the stream's spool file be finished although it is not full?"""
        writer, age = self._spool[stream], time.monotonic() - self._began[stream]
        if stream != EVENTS.name or self._retirer is None:
            return age >= ROTATE_S and writer.rows >= ROTATE_LEAST_ROWS
        return writer.rows > 0 and self._retirer.ends_part(writer.size, age, self._times[1] - self._times[0])

    def _lose_stretch(self, s: Stretch) -> None:
        self.lose(s.kind, s.count, t_begin=s.t_begin, t_end=s.t_end, detail="raw rows dropped, summaries kept")

    def _rotate(self, stream: str) -> None:
        if f := self._spool[stream].finish():
            if stream == EVENTS.name and self._retirer is not None:
                f.times = self._times
            self._sealer.submit(f)

    def _with_room(self, act: Callable[[], None]) -> None:
        """Do it, giving back the reserve while the file system is full. Raises OSError when that does not help."""
        while True:
            try:
                return act()
            except OSError as error:
                if error.errno not in FULL or not self._reserve.give_back():
                    raise

    def _on_sealed(self, stream: str, files: list[spool.SpoolFile], entry: dict[str, Any] | None) -> None:
        self._ledger.sealed(stream, files, entry)
        if entry is not None:
            self._deriver.submit(stream, entry)

    def _finish(self, end: dict[str, Any]) -> None:
        self._write(EVENTS.name)  # which may drop them
        for stretch in self._gate.close(last=True):
            self._lose_stretch(stretch)
        for stream in self._tables:
            self._write(stream)
            self._rotate(stream)
        self._sealer.stop()
        self._reserve.remove()

        def tell_saturated(rows: int) -> None:
            self.lose("since_saturated", rows)
            self._write(LOSS.name)
            self._rotate(LOSS.name)

        ending = Ending(self.path, self._manifest, self._sealer, self._deriver, self._ledger, self._retirer)
        ending.run(end, tell_saturated, lambda stream: not self._gathered[stream].rows)

    def _let_go(self) -> None:
        for writer in self._spool.values():
            writer.close()
        self._reserve.remove()
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None
