"""A trace opened for reading: its sealed parts, its tail, its side tables."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from . import derived, durable, manifest, map_streams, parquet, retention, snapshot, spool
from .errors import Refused
from .snapshot import Snapshot
from .tables import KEPT_TABLES, LOSS, Table

_ATTEMPTS = 50


@dataclass(frozen=True)
class Part:
    """A sealed part: `rows` rows from `t_min` to `t_max` (ns, exact; None where no row has a time), `bytes` bytes."""

    path: Path
    rows: int
    t_min: int | None
    t_max: int | None
    bytes: int
    crc32: int


class Trace:
    """A trace opened for reading, as it was at that moment. Open it again to see more of one that is recorded."""

    def __init__(self, path: Path, taken: Snapshot) -> None:
        self.path = path
        self.manifest = taken.content
        self.state = _state(path, taken.content)
        self.notes: list[str] = []
        """What a reader must be told: each one sentence."""
        self._snapshot = taken
        self._lacking = False
        self._checked: dict[Path, bool] = {}
        self._rest: dict[str, pa.Table] | None = None
        self._lock, self._rest_lock = threading.Lock(), threading.Lock()
        self._note_state()
        self._parts = {name: self._found(name) for name in (*manifest.streams_of(taken.content), *derived.NAMES)}

    @classmethod
    def open(cls, path: Path) -> Trace:
        """Open the trace at `path` without waiting for anybody.

        Parts that are missing or have another size than the manifest says are left out, with a note. Raises Refused
        when there is no manifest or it is damaged, of another version or impossible.
        """
        path = Path(path)
        for _ in range(_ATTEMPTS):
            taken = Snapshot.take(path)
            trace = cls(path, taken)
            # Of a rolling recording a part may have gone since the manifest was read; then there is a newer one.
            if not trace._lacking or manifest.read(path).get(retention.KEY) == taken.content.get(retention.KEY):
                break
            trace.close()
        trace.notes += taken.notes
        if rolling := retention.note(taken.content):
            trace.notes.append(rolling)
        return trace

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the spool files."""
        self._snapshot.close()

    @property
    def maps(self) -> dict[str, Table]:
        """Streams of what programs' maps held, by name (`maps.NAME`)."""
        return map_streams.tables(self.manifest)

    @property
    def is_derived(self) -> bool:
        """Is all that can be derived from the events in sealed parts? Then `tail` of a derived table is empty."""
        return derived.is_finished(self.manifest)

    def parts(self, stream: str) -> list[Part]:
        """The sealed parts of a stream, in order of arrival, or of a derived table; what is in them is not read.

        See `verified`.
        """
        return list(self._parts[stream])

    def verified(self, stream: str, t_min: int | None = None, t_max: int | None = None) -> list[Part]:
        """The parts that hold rows between the two times and whose content is what was sealed.

        A byte that flipped inside a part may decode to a wrong number without any error, and DuckDB does not check
        Parquet's page checksums. This reads each part once (1.6 GB/s a core) and compares its CRC-32 with the
        manifest's; a part that fails is left out from then on, with a note.
        """
        picked = [p for p in self._parts[stream] if _overlaps(p, t_min, t_max)]
        bad = [p for p in picked if not self._is_sound(p)]
        for part in bad:
            self._parts[stream].remove(part)
            gone = retention.KEY in self.manifest and not os.path.lexists(part.path)
            why = "it was retired since the trace was opened" if gone else "it fails its checksum"
            self.notes.append(f"{_inside(part.path)} was left out: {why} ({part.rows} rows)")
        return [p for p in picked if p not in bad]

    def tail(self, stream: str) -> pa.Table:
        """The rows of a stream that are in the spool, in stored form; events in order of (rank, worker, seq).

        Of `loss` also what the manifest says was retired.

        The newest 256 MB; a note says how many rows before them were left out. Of a derived table: the rows that its
        parts do not have yet, and what is open. They are put together here, for at most `derived_rest.EVENTS_MOST`
        events (4 s and 2 GB on one core); beyond, they are left out with a note.
        """
        if stream in derived.NAMES:
            if self.is_derived:
                return parquet.BY_NAME[stream].schema.empty_table()
            from . import derived_rest  # and all of pairing, which a trace that is derived whole does without

            with self._rest_lock:
                if self._rest is None:
                    self._rest = derived_rest.rest(self, self._snapshot.carried(), self._note)
                return self._rest[stream]
        batches: list[pa.RecordBatch] = []
        table = parquet.table_of(self.manifest, stream)
        room = snapshot.TAIL_BYTES // snapshot.ROW_BYTES
        left_out = damaged = 0
        for f in reversed(self._snapshot.files.get(stream, [])):
            frames = f.frames
            rows = 0
            first = len(frames)
            while first > 0 and rows + frames[first - 1].rows <= room:
                first -= 1
                rows += frames[first].rows
            room = room - rows if first == 0 else 0
            left_out += sum(x.rows for x in frames[:first])
            read = _read(f, parquet.spooled_schema(table), frames[first:])
            damaged += sum(x.rows for x, b in zip(frames[first:], read, strict=True) if b is None)
            batches[:0] = [b for b in read if b is not None]
        if left_out:
            self._note(f"{stream}: the oldest {left_out} rows of the spool were left out: it is too large")
        if damaged:
            self._note(f"{stream}: {damaged} rows in the spool were left out: they fail their checksum")
        rows_of = parquet.stored_table(table, batches)
        return rows_of if stream != LOSS.name else pa.concat_tables([rows_of, retention.losses(self.manifest)])

    def table(self, name: str) -> pa.Table:
        """A side table, in its declared schema; empty when nobody gave it.

        Raises Refused when its file is missing or damaged.
        """
        table = next((t for t in KEPT_TABLES if t.name == name), None)
        if table is None:
            raise Refused(f"cannot read the table {name}", "there is none of that name")
        entry = self.manifest["tables"].get(name)
        rows = table.schema.empty_table() if entry is None else parquet.read_side_table(self.path, table, entry)
        if files := self._snapshot.files.get(name):
            upserted = [b for f in files for b in _read(f, table.schema, f.frames) if b is not None]
            rows = parquet.last_of_each(table, pa.concat_tables([rows, pa.Table.from_batches(upserted, table.schema)]))
            if sum(f.rows for f in files) > sum(b.num_rows for b in upserted):
                self._note(f"{name}: rows in the spool were left out: they fail their checksum")
        return rows

    def spooled(self, stream: str) -> list[spool.SpoolFile]:
        """The spool files that hold the tail of a stream or engine table."""
        return self._snapshot.files.get(stream, [])

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _note_state(self) -> None:
        if self.state == "recording":
            self.notes.append("the trace is being recorded: this is what was there when it was opened")
        elif self.state == "unsealed":
            why = (
                "its recorder ended without an end record"
                if self.manifest["end"] is None
                else "it was not sealed whole"
            )
            self.notes.append(f"the trace is unsealed: {why}; megascope check --repair seals what can be read")
        else:
            # Not a note: the caller puts notes after the state's.
            return

    def _found(self, stream: str) -> list[Part]:
        folder = self.path / parquet.folder_of(stream)
        out = []
        entries = derived.parts_of(self.manifest, stream)
        real = not entries or snapshot.is_folder(folder)
        for e in entries:
            part = Part(folder / e["file"], e["rows"], e["t_min"], e["t_max"], e["bytes"], e["crc32"])
            try:
                found = os.lstat(part.path) if real else None
            except OSError:
                found = None
            if found is None or not stat.S_ISREG(found.st_mode):
                why = "it is missing"
            elif found.st_size != part.bytes:
                why = f"it has {found.st_size} bytes instead of {part.bytes}"
            else:
                out.append(part)
                continue
            self._lacking = True
            self.notes.append(f"{_inside(part.path)} was left out: {why} ({part.rows} rows)")
        return out

    def _is_sound(self, part: Part) -> bool:
        with self._lock:
            known = self._checked.get(part.path)
        if known is None:
            try:
                known = parquet.file_crc(part.path) == (part.bytes, part.crc32)
            except OSError:
                known = False
            with self._lock:
                self._checked[part.path] = known
        return known


def _overlaps(part: Part, t_min: int | None, t_max: int | None) -> bool:
    if part.t_min is None or part.t_max is None:
        return True
    return (t_max is None or part.t_min <= t_max) and (t_min is None or part.t_max >= t_min)


def _inside(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def _state(path: Path, content: dict[str, Any]) -> str:
    if content["state"] == "sealed":
        return "sealed"
    held = durable.is_locked(path)
    if held is None:
        writer = content["writer"]
        held = content["end"] is None and 0 < writer["start"] == durable.process_start(writer["pid"])
    return "recording" if held else "unsealed"


def _read(f: spool.SpoolFile, schema: pa.Schema, frames: Iterable[spool.Frame]) -> list[pa.RecordBatch | None]:
    wanted = list(frames)
    try:
        return list(spool.read(f, schema, wanted))
    except OSError:
        return [None] * len(wanted)
