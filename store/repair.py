"""Making a trace whole that its recorder could not finish: `megascope check --repair`.

What can be read from the spool is sealed; what cannot is put aside and becomes a row of `loss`; tasks, waits and tiles
are derived from what there is. Loss rows wait in
the manifest, under `repair`, written in the same step as the part they belong to, until the stream `loss` itself is
sealed: so that repair may be killed anywhere and run again, and counts nothing twice.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from . import derived, durable, manifest, parquet, seal, spool
from .derive import Derivation
from .errors import MegascopeError, Refused
from .litter import DAMAGED_FOLDER, litter, unsound
from .loss import LOSS_BY_NAME
from .reader import Trace
from .tables import LOSS, TOLD_TABLES, Table
from .verify import REPAIRED, Progress, Report, check

_WHAT = "cannot repair"
_PENDING = "repair"


def repair(path: Path, *, progress: Progress | None = None) -> Report:
    """Seal what can be read, put aside what cannot, and check the result.

    A trace without a readable manifest is reported and left alone. Raises Refused while the trace is being
    recorded, MegascopeError when the disk is full or cannot be written; then nothing has been lost.
    """
    path = Path(path)
    try:
        manifest.read(path)
    except Refused:
        return check(path, progress=progress)
    try:
        lock = durable.lock_directory(path)
    except BlockingIOError:
        raise Refused(f"{_WHAT} {path}", "it is being recorded", "end the recording first") from None
    except OSError as error:
        raise MegascopeError(f"{_WHAT} {path}", error.strerror or str(error)) from None
    try:
        with Trace.open(path) as trace:
            # Where the file system has no locks, the recorder's process is all there is to go by.
            if lock is None and trace.state == "recording":
                raise Refused(f"{_WHAT} {path}", "it is being recorded", "end the recording first")
            try:
                _Repairing(trace).run()
            except OSError as error:
                why = error.strerror or str(error)
                raise MegascopeError(f"{_WHAT} {path}", why, "free space and run it again: nothing was lost") from None
    finally:
        if lock is not None:
            os.close(lock)
    return check(path, progress=progress)


class _Repairing:
    """One repair of one trace, whose lock is held."""

    def __init__(self, trace: Trace) -> None:
        self.trace, self.path = trace, trace.path
        self.book = manifest.Manifest(trace.path, trace.manifest)

    def run(self) -> None:
        streams = manifest.streams_of(self.trace.manifest)
        for stream in streams:
            self._drop_damaged_parts(stream)
        for name in manifest.spooled_of(self.trace.manifest):
            self._note_unreadable(name)
        for stream in streams:
            for group in seal.groups(self.trace.spooled(stream), last=True):
                self._seal(stream, group)
        for table in TOLD_TABLES:
            self._seal_table(table)
        self._seal_pending()
        self._end()
        self._derive()
        self._tidy()

    def _drop_damaged_parts(self, stream: str) -> None:
        whole = {p.path.name: p for p in self.trace.parts(stream)}
        for entry in self.book.snapshot()["streams"][stream]["parts"]:
            file = entry["file"]
            why = unsound(whole[file]) if file in whole else "is missing or cut short"
            if why is None:
                continue
            loss = _loss(
                "part_unreadable",
                entry["rows"],
                f"{parquet.folder_of(stream)}/{file} {why}",
                entry["t_min"],
                entry["t_max"],
            )

            def change(m: dict[str, Any], file: str = file, loss: dict[str, Any] = loss) -> None:
                entries = m["streams"][stream]["parts"]
                m["streams"][stream]["parts"] = [e for e in entries if e["file"] != file]
                _pend(m, loss)

            self.book.commit(change)
            self._put_aside(self.path / parquet.folder_of(stream) / file)

    def _note_unreadable(self, name: str) -> None:
        """Spool files that are there and not to be opened, or missing from the row of numbers."""
        folder = self.path / spool.FOLDER
        sealed = self.book.snapshot()["spool_sealed"][name]
        readable = {f.number for f in self.trace.spooled(name)}
        there = [n for n in spool.numbers(folder, name) if n > sealed]
        for first, last in spool.gaps(there, sealed):
            names = f"{spool.file_name(name, first)} to {spool.file_name(name, last)}"
            loss = _loss("spool_tail", 0, f"{spool.FOLDER}: {names} are missing")
            self.book.commit(lambda m, loss=loss: _pend(m, loss))  # type: ignore[misc]
        for number in (n for n in there if n not in readable):
            path = folder / spool.file_name(name, number)
            size = path.lstat().st_size if os.path.lexists(path) else 0
            loss = _loss("spool_tail", size, f"{spool.FOLDER}/{path.name} cannot be read")
            self.book.commit(lambda m, loss=loss: _pend(m, loss))  # type: ignore[misc]
            self._put_aside(path)
            self._put_aside(path.with_suffix(spool.SUMS))

    def _seal(self, stream: str, files: list[spool.SpoolFile]) -> None:
        bad = {f.path for f in files if f.cut and not f.frames}

        def also(m: dict[str, Any], sealed: parquet.Sealed) -> None:
            if stream in derived.SOURCES:
                # What was derived does not know of these rows.
                m.pop(derived.KEY, None)
            for path, rows in sealed.unreadable:
                bad.add(path)
                _pend(m, _loss("part_unreadable", rows, f"{spool.FOLDER}/{path.name} fails its checksum"))
            for f in files:
                if f.cut:
                    _pend(m, _loss("spool_tail", f.cut, f"{spool.FOLDER}/{f.path.name}"))

        def dispose(f: spool.SpoolFile) -> None:
            if f.path in bad:
                self._put_aside(f.path)
                self._put_aside(f.path.with_suffix(spool.SUMS))
            else:
                spool.remove(f)

        seal.seal(self.path, self.book, stream, files, also=also, dispose=dispose)

    def _seal_table(self, table: Table) -> None:
        try:
            before = self.trace.table(table.name)
        except Refused:
            # Damaged, and it has no other copy: check goes on saying so.
            return
        files = self.trace.spooled(table.name)
        if files or table.name not in self.book.snapshot()["tables"]:
            seal.seal_table(self.path, self.book, table, files, before)

    def _seal_pending(self) -> None:
        """The losses that repair has found, and what sealing has to tell, as a last part of `loss`."""
        told = 0
        for part in Trace.open(self.path).verified(LOSS.name):
            rows = pq.read_table(part.path, columns=["kind", "count"])
            told += sum(r["count"] for r in rows.to_pylist() if r["kind"] == "since_saturated")
        content = self.book.snapshot()
        losses = list(content.get(_PENDING, []))
        if saturated := seal.untold_saturation(content, told):
            losses.append(_loss("since_saturated", saturated, ""))
        if not losses:
            return
        batch = pa.RecordBatch.from_pylist(losses, schema=LOSS.schema)
        seal.seal(self.path, self.book, LOSS.name, [], more=[batch], also=lambda m, _: m.pop(_PENDING, None))

    def _end(self) -> None:
        def change(m: dict[str, Any]) -> None:
            m["state"] = "sealed"
            m["end"] = m["end"] or {"reason": REPAIRED}

        content = self.book.snapshot()
        if content["state"] != "sealed" or content["end"] is None:
            self.book.commit(change)

    def _derive(self) -> None:
        """Tasks, waits and tiles from the first event on, unless all their parts are there and sound.

        Parts whose events have been lost since are kept: what they say was observed.
        """
        content = self.book.snapshot()
        with Trace.open(self.path) as now:
            sound = all(unsound(p) is None for n in derived.NAMES for p in now.parts(n))
            sound &= all(len(now.parts(n)) == len(derived.parts_of(content, n)) for n in derived.NAMES)
        if sound and derived.is_finished(content):
            return
        if derived.KEY in content:
            self.book.commit(lambda m: m.pop(derived.KEY))
        derivation = Derivation(self.path, self.book, keep_state=False)
        for stream in derived.SOURCES:
            for entry in derived.parts_of(content, stream):
                derivation.step(stream, entry)
        derivation.finish()

    def _tidy(self) -> None:
        with Trace.open(self.path) as now:
            for file, kind in list(litter(now)):
                if kind in ("temporary", "sealed", "derived", "retired"):
                    (self.path / file).unlink(missing_ok=True)
        with suppress(OSError):
            (self.path / spool.FOLDER).rmdir()

    def _put_aside(self, file: Path) -> None:
        if not os.path.lexists(file):
            return
        folder = self.path / DAMAGED_FOLDER
        folder.mkdir(exist_ok=True)
        target, n = folder / file.name, 1
        while os.path.lexists(target):
            target, n = folder / f"{file.name}.{n}", n + 1
        file.rename(target)


def _pend(m: dict[str, Any], loss: dict[str, Any]) -> None:
    """Let a loss wait in the manifest; once, however often repair was killed after it."""
    waiting = m.setdefault(_PENDING, [])
    if loss not in waiting:
        waiting.append(loss)


def _loss(kind: str, count: int, detail: str, t_begin: int | None = None, t_end: int | None = None) -> dict[str, Any]:
    """A row of `loss`."""
    row: dict[str, Any] = dict.fromkeys(LOSS.names)
    known = {"kind": kind, "severity": LOSS_BY_NAME[kind].severity, "count": count, "detail": detail}
    return row | known | {"t_begin": t_begin, "t_end": t_end}
