"""Recording into a trace directory: what `capture` calls, from one thread."""

from __future__ import annotations

import os
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from . import durable, parquet, seal, spool
from . import manifest as _manifest
from .budget import FULL, Gate, Reserve, Stretch
from .errors import MegascopeError, Refused
from .loss import LOSS_BY_NAME
from .tables import COMPILER_TABLES, ENGINE_TABLES, EVENTS, LOSS

BATCH_ROWS = 1 << 15
"""Rows gathered to one batch of the spool."""

ROTATE_S = 1.0
ROTATE_LEAST_ROWS = 1 << 16
"""A spool file is finished after a second once it has this many rows; a slow engine gets few files, not many."""

_UNWRITTEN_MOST = 1 << 20
RESERVE_FILE = "reserve"
_ENTRIES = {_manifest.FILE, "tables", spool.FOLDER, *_manifest.STREAM_NAMES}


class TraceWriter:
    """A trace that is being recorded. Every method is called by one thread; sealing runs in another.

    Batches given to it must own their memory: they are kept until there are enough for one write.
    """

    def __init__(
        self, path: Path, book: _manifest.Manifest, lock: int | None, max_bytes: int | None, sync: bool
    ) -> None:
        self.path = path
        self.rows: dict[str, int] = dict.fromkeys(_manifest.SPOOLED, 0)
        """Rows put into the spool so far, by stream and engine table."""
        self._manifest, self._lock_fd = book, lock
        content = book.snapshot()
        self._folder = path / spool.FOLDER
        self._reserve = Reserve(self._folder / RESERVE_FILE, max_bytes)
        self._gate = Gate(max_bytes)
        self._spool = {
            n: spool.SpoolWriter(self._folder, n, parquet.spooled_schema(n), content["id"], sync=sync)
            for n in _manifest.SPOOLED
        }
        self._gathered: dict[str, list[pa.RecordBatch]] = {n: [] for n in _manifest.SPOOLED}
        self._gathered_rows = dict.fromkeys(_manifest.SPOOLED, 0)
        self._began = dict.fromkeys(_manifest.SPOOLED, 0.0)
        self._count = threading.Lock()
        self._sealed_bytes = sum(t["bytes"] for t in content["tables"].values())
        self._removed_bytes = self._sealed_events = 0
        self._sealer = seal.Sealer(path, book, self._on_sealed)
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
    ) -> TraceWriter:
        """Create the directory of a trace and begin to record.

        `manifest`: any of `engine`, `clock`, `programs`, `perturbation`, and `name`. `tables`: the compiler's side
        tables, written at once. `max_bytes`: the disk budget. `sync`: fsync every batch. `force` replaces a trace
        that is there, and nothing else. Raises Refused or MegascopeError, and then nothing has been left behind.
        """
        _make_room(path, force)
        lock = None
        try:
            path.mkdir(parents=True)
            lock = durable.lock_directory(path)
            for folder in (spool.FOLDER, "tables", *_manifest.STREAM_NAMES):
                (path / folder).mkdir()
            writer = cls(path, _begin(path, manifest, tables, max_bytes), lock, max_bytes, sync)
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
        return writer

    @property
    def bytes_written(self) -> int:
        """Bytes on disk for this trace: spool and sealed."""
        with self._count:
            total: int = self._sealed_bytes - self._removed_bytes + sum(w.total for w in self._spool.values())
        return total

    @property
    def sealing_lag_rows(self) -> int:
        """Event rows in the spool that are not sealed yet."""
        lag: int = self.rows[EVENTS.name] - self._sealed_events
        return lag

    @property
    def raw_stopped(self) -> str | None:
        """Why raw rows are being dropped: `disk_budget`, `disk_full` or None."""
        return self._gate.stopped

    def append(self, stream: str, batch: pa.RecordBatch) -> None:
        """Add rows to a stream: ring rows to `events`, else rows as the stream's table declares them.

        Raises Refused for another schema, MegascopeError when the disk fails in another way than being full.
        """
        if stream not in _manifest.STREAM_NAMES:
            raise Refused(f"cannot append to {stream}", "there is no such stream")
        self._gather(stream, batch)

    def upsert(self, table: str, batch: pa.RecordBatch) -> None:
        """Add rows to an engine table; of rows with the same key the last counts. Raises as `append`."""
        if table not in {t.name for t in ENGINE_TABLES}:
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
        for stream in _manifest.SPOOLED:
            self._write(stream)
            if time.monotonic() - self._began[stream] >= ROTATE_S and self._spool[stream].rows >= ROTATE_LEAST_ROWS:
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
        """Seal what is in the spool, write the end record (`reason` and `end`) and let go of the trace.

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
        self._let_go()

    def _gather(self, stream: str, batch: pa.RecordBatch) -> None:
        if batch.schema != parquet.spooled_schema(stream):
            raise Refused(f"cannot append to {stream}", "the batch has other columns than the stream")
        if self._finished:
            raise MegascopeError(f"cannot append to {stream}", "the recording has ended")
        if batch.num_rows == 0:
            return
        self._gathered[stream].append(batch)
        self._gathered_rows[stream] += batch.num_rows
        if self._gathered_rows[stream] >= BATCH_ROWS:
            self._write(stream)

    def _write(self, stream: str) -> None:
        """Put what is gathered of a stream into its spool file."""
        batches = self._gathered[stream]
        if not batches:
            return
        batch = _joined(batches) if len(batches) > 1 else batches[0]
        raw = stream == EVENTS.name
        if raw and not self._gate.admits(self.bytes_written, batch.nbytes):
            self._drop(batch)
            return
        writer = self._spool[stream]
        if writer.rows == 0:
            self._began[stream] = time.monotonic()
        try:
            if raw:
                writer.write(batch)
            else:
                self._with_room(lambda: writer.write(batch))
        except OSError as error:
            if error.errno not in FULL:
                raise MegascopeError(f"cannot write to {self.path}", error.strerror or str(error)) from None
            if raw:
                self._gate.full()
                self._drop(batch)
            elif self._gathered_rows[stream] > _UNWRITTEN_MOST:
                raise MegascopeError(f"cannot write to {self.path}", "the disk is full", "free space") from None
            return
        self._forget(stream)
        self.rows[stream] += batch.num_rows
        if writer.full:
            self._rotate(stream)

    def _forget(self, stream: str) -> None:
        self._gathered[stream] = []
        self._gathered_rows[stream] = 0

    def _drop(self, batch: pa.RecordBatch) -> None:
        self._forget(EVENTS.name)
        for stretch in self._gate.drop(batch):
            self._lose_stretch(stretch)

    def _lose_stretch(self, s: Stretch) -> None:
        self.lose(s.kind, s.count, t_begin=s.t_begin, t_end=s.t_end, detail="raw rows dropped, summaries kept")

    def _rotate(self, stream: str) -> None:
        if f := self._spool[stream].finish():
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
        with self._count:
            self._removed_bytes += sum(f.on_disk for f in files)
            self._sealed_bytes += entry["bytes"] if entry else 0
            if stream == EVENTS.name:
                self._sealed_events += sum(f.rows for f in files)

    def _finish(self, end: dict[str, Any]) -> None:
        for stretch in self._gate.close(last=True):
            self._lose_stretch(stretch)
        for stream in _manifest.SPOOLED:
            self._write(stream)
            self._rotate(stream)
        self._sealer.stop()
        self._reserve.remove()
        whole = True
        for stream in _manifest.STREAM_NAMES:
            if stream != LOSS.name:
                whole &= self._seal_rest(stream)
        # What sealing itself has to tell comes after the last event is sealed, and before the losses are.
        if saturated := seal.untold_saturation(self._manifest.snapshot(), 0):
            self.lose("since_saturated", saturated)
            self._write(LOSS.name)
            self._rotate(LOSS.name)
        whole &= self._seal_rest(LOSS.name)
        for table in ENGINE_TABLES:
            files = self._sealer.waiting.get(table.name, [])
            try:
                self._on_sealed(table.name, files, seal.seal_table(self.path, self._manifest, table, files))
            except OSError as error:
                if error.errno not in FULL:
                    raise
                whole = False

        def change(m: dict[str, Any]) -> None:
            m["state"], m["end"] = "sealed" if whole else "unsealed", end

        self._manifest.commit(change)
        if whole:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _seal_rest(self, stream: str) -> bool:
        """Seal all of a stream that waits; False when there is no room for it."""
        for group in list(seal.groups(self._sealer.waiting.get(stream, []), last=True)):
            try:
                self._sealer.seal(stream, group)
            except OSError as error:
                if error.errno not in FULL:
                    raise
                return False
        return not self._gathered[stream]

    def _let_go(self) -> None:
        for writer in self._spool.values():
            writer.close()
        self._reserve.remove()
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _begin(
    path: Path, given: dict[str, Any], tables: Mapping[str, pa.Table], max_bytes: int | None
) -> _manifest.Manifest:
    """Write the side tables and the first manifest of a new trace. Raises OSError and Refused."""
    if unknown := set(given) - {*_manifest.GIVEN, "name"}:
        raise Refused("cannot write the manifest", f"{', '.join(sorted(unknown))} is not the recorder's")
    content = _manifest.fresh(
        name=given.get("name", path.stem),
        trace_id=uuid.uuid4().hex,
        created_utc=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        writer={"pid": os.getpid(), "start": durable.process_start(os.getpid())},
        max_bytes=max_bytes,
    )
    declared = {t.name: t for t in COMPILER_TABLES}
    for name, rows in tables.items():
        if name not in declared or rows.schema != declared[name].schema:
            raise Refused(f"cannot write the side table {name}", "it is not declared so")
        content["tables"][name] = parquet.write_side_table(path, declared[name], rows)
    book = _manifest.Manifest(path, content)
    book.commit(lambda m: m.update(given))
    return book


def _make_room(path: Path, force: bool) -> None:
    """Refuse a path that is taken, or with `force` remove the trace there and nothing that is none."""
    what = f"cannot create {path}"
    if not os.path.lexists(path):
        return
    if not force:
        raise Refused(what, "it exists", "use --force to replace a trace")
    if path.is_symlink() or not path.is_dir():
        raise Refused(what, "it exists and is no trace")
    names = {e.name for e in path.iterdir()}
    litter = {n for n in names if n.startswith(".") and n.endswith(durable.TEMPORARY)}
    if _manifest.FILE not in names or names - litter - _ENTRIES:
        raise Refused(what, "it exists and is no trace, or holds files that are none of a trace's")
    if durable.is_locked(path):
        raise Refused(what, "it is being recorded", "end that recording first")
    doomed = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}{durable.TEMPORARY}")
    path.rename(doomed)
    shutil.rmtree(doomed)
