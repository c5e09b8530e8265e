"""The spool: rows on disk before they are sealed, readable up to the last whole batch whatever happened.

`spool/STREAM-NNNNNN.arrows` is an Arrow IPC stream that any Arrow reader opens. Beside it, `.sums` has one 32-byte
record per message: what it is, its rows, where it ends, and a checksum of its bytes. A message counts as written
once its record is there, so the sums say how far a killed writer came; and Arrow is only ever given bytes whose
checksum holds. The records' own checksums are seeded with the trace, the stream and the number of the file, so that
a file under another's name is noticed. A finished file ends with a batch without rows whose metadata says
`megascope.end`, and a record for it: a stream that merely ends proves nothing.
"""

from __future__ import annotations

import io
import os
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import xxhash

from . import durable

FOLDER = "spool"
DATA, SUMS = ".arrows", ".sums"
ROTATE_ROWS = 1 << 20
ROTATE_BYTES = 128 << 20
ROTATE_FRAMES = 1024
"""A file is finished at any of these; the last one is for engines so slow that every batch is a few rows."""

END_KEY = b"megascope.end"
_EOS = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_RECORD = struct.Struct("<4sIQIIII")
_SCHEMA, _ROWS, _DONE = b"SCHM", b"ROWS", b"DONE"
_FILE = re.compile(r"([a-z][a-z0-9_.]*)-(\d{6,12})\.(?:arrows|sums)")
_MAX_FRAMES = 1 << 20


def file_name(stream: str, number: int) -> str:
    return f"{stream}-{number:06d}{DATA}"


def digest_of(data: bytes | memoryview) -> int:
    """Checksum of a message: the low half of its XXH3, which keeps up with the disk where a CRC-32 does not."""
    digest: int = xxhash.xxh3_64_intdigest(data)
    return digest & 0xFFFF_FFFF


def _seed(trace_id: str, stream: str, number: int) -> int:
    return zlib.crc32(f"{trace_id}/{stream}/{number}".encode())


@dataclass(frozen=True)
class Frame:
    """One record batch in a spool file: bytes [begin, end), `rows` rows, checksum."""

    begin: int
    end: int
    rows: int
    digest: int


@dataclass
class SpoolFile:
    """What the sums of one spool file promise. `ended`: its end record is there; `cut`: bytes beyond the last frame;
    `on_disk`: bytes of both files; `times`: first and last device time of its events (ns), where its writer knows."""

    stream: str
    number: int
    path: Path
    frames: list[Frame] = field(default_factory=list)
    schema: Frame | None = None
    ended: bool = False
    cut: int = 0
    on_disk: int = 0
    fd: int = -1
    times: tuple[int, int] | None = None

    @property
    def rows(self) -> int:
        return sum(f.rows for f in self.frames)

    @property
    def size(self) -> int:
        """Bytes of the data file that the sums vouch for."""
        return self.frames[-1].end if self.frames else 0

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class SpoolWriter:
    """Appends batches to numbered files of one stream, one file at a time. Used by one thread."""

    def __init__(self, folder: Path, stream: str, schema: pa.Schema, trace_id: str, *, sync: bool = False) -> None:
        self._folder, self._stream, self._schema = folder, stream, schema
        self._trace_id, self._sync = trace_id, sync
        self._number = 0
        self.total = 0
        """Bytes ever written, in data and sums."""
        self._data = self._sums = -1
        self._end = self._index = self._rows = self._seed = 0
        self._file: SpoolFile | None = None

    @property
    def full(self) -> bool:
        """Is it time to finish the file?"""
        f = self._file
        return f is not None and (
            self._rows >= ROTATE_ROWS or self._end >= ROTATE_BYTES or len(f.frames) >= ROTATE_FRAMES
        )

    @property
    def size(self) -> int:
        """Bytes of data in the file that is being written."""
        return self._end if self._file else 0

    @property
    def rows(self) -> int:
        """Rows in the file that is being written."""
        return self._rows if self._file else 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Append a batch.

        Raises OSError: then none of it counts, and the file can still be written to and finished.
        """
        if self._file is None:
            self._start()
        assert self._file is not None
        begin = self._end
        digest = self._put(_ROWS, batch.serialize(), batch.num_rows)
        self._file.frames.append(Frame(begin, self._end, batch.num_rows, digest))
        self._rows += batch.num_rows

    def finish(self) -> SpoolFile | None:
        """Write the end record and close; None when nothing was written since the last time.

        Where there is no room for the end record the file goes without, and is not `ended`.
        """
        f = self._file
        if f is None:
            return None
        with suppress(OSError):
            self._put(_DONE, _end_message(self._schema, self._rows), 0)
            f.ended = True
        f.on_disk = self._end + self._index * _RECORD.size
        self.close()
        return f

    def close(self) -> None:
        """Leave the file as it is, as a crash would."""
        for fd in (self._data, self._sums):
            if fd >= 0:
                os.close(fd)
        self._data = self._sums = -1
        self._file = None

    def _start(self) -> None:
        number = self._number + 1
        path = self._folder / file_name(self._stream, number)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_APPEND
        try:
            # The sums first: who finds the data finds its sums too.
            self._sums = os.open(path.with_suffix(SUMS), flags, 0o644)
            self._data = os.open(path, flags, 0o644)
            self._end = self._index = self._rows = 0
            self._seed = _seed(self._trace_id, self._stream, number)
            self._put(_SCHEMA, self._schema.serialize(), 0)
        except OSError:
            self.close()
            path.unlink(missing_ok=True)
            path.with_suffix(SUMS).unlink(missing_ok=True)
            raise
        self._number = number
        self._file = SpoolFile(self._stream, number, path)

    def _put(self, kind: bytes, data: pa.Buffer | bytes, rows: int) -> int:
        view = memoryview(data)
        end = self._end + len(view)
        digest = digest_of(view)
        record = _RECORD.pack(kind, rows, end, digest, self._index, 0, 0)[:-4]
        record += struct.pack("<I", zlib.crc32(record, self._seed))
        try:
            durable.write_all(self._data, view)
            durable.write_all(self._sums, record)
            if self._sync:
                os.fdatasync(self._data)
                os.fdatasync(self._sums)
        except OSError:
            # A full disk may have taken a part: cut it off, so that the next message follows the last whole one.
            os.ftruncate(self._data, self._end)
            os.ftruncate(self._sums, self._index * _RECORD.size)
            raise
        self._end, self._index = end, self._index + 1
        self.total += len(view) + _RECORD.size
        return digest


def _end_message(schema: pa.Schema, rows: int) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, schema) as stream:
        stream.write_batch(
            pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema),
            custom_metadata={END_KEY: str(rows).encode()},
        )
    return sink.getvalue()[schema.serialize().size :]


def scan(path: Path, trace_id: str, *, keep_open: bool = False) -> SpoolFile:
    """What the spool file at `path` holds, by its sums alone; no row is read.

    `keep_open` leaves the data file's descriptor in `fd`, so that its rows stay readable when a writer seals and
    removes it. Raises OSError (FileNotFoundError when it has just been sealed).
    """
    match = _FILE.fullmatch(path.name)
    assert match, path
    f = SpoolFile(match[1], int(match[2]), path)
    f.fd = durable.open_regular(path)
    try:
        sums = durable.read_regular(path.with_suffix(SUMS), _MAX_FRAMES * _RECORD.size)
        size = os.fstat(f.fd).st_size
    except OSError:
        f.close()
        raise
    if not keep_open:
        f.close()
    seed = _seed(trace_id, f.stream, f.number)
    at = 0
    for index in range(len(sums) // _RECORD.size):
        record = sums[index * _RECORD.size :][: _RECORD.size]
        kind, rows, end, digest, number, _, own = _RECORD.unpack(record)
        if own != zlib.crc32(record[:-4], seed) or number != index or end <= at or f.ended:
            break
        if (kind == _SCHEMA) != (index == 0) or kind not in (_SCHEMA, _ROWS, _DONE) or end > size:
            break
        if kind == _SCHEMA:
            f.schema = Frame(at, end, 0, digest)
        elif kind == _ROWS:
            f.frames.append(Frame(at, end, rows, digest))
        else:
            f.ended = True
        at = end
    f.cut = size - at
    f.on_disk = size + len(sums)
    return f


def numbers(folder: Path, stream: str) -> list[int]:
    """Numbers of the stream's spool files, ascending, also of halves of them. A missing folder has none."""
    try:
        names = [e.name for e in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = (m for m in map(_FILE.fullmatch, names) if m and m[1] == stream)
    return sorted({int(m[2]) for m in found if file_name(stream, int(m[2])) == m[0].replace(SUMS, DATA)})


def gaps(present: Sequence[int], sealed: int) -> Iterator[tuple[int, int]]:
    """Numbers (first, last) of files that should be there: between those sealed and the last one `present`."""
    before = sealed
    for number in present:
        if number > before + 1:
            yield before + 1, number - 1
        before = number


def read(f: SpoolFile, schema: pa.Schema, frames: Sequence[Frame] | None = None) -> Iterator[pa.RecordBatch | None]:
    """The batches of `frames` (default: all); None in the place of one that is damaged. Raises OSError."""
    fd = f.fd if f.fd >= 0 else durable.open_regular(f.path)
    try:
        for frame in f.frames if frames is None else frames:
            yield decode(durable.read_at(fd, frame.begin, frame.end - frame.begin), frame, schema)
    finally:
        if f.fd < 0:
            os.close(fd)


def decode(data: bytes, frame: Frame, schema: pa.Schema) -> pa.RecordBatch | None:
    """The record batch in `data`; None when it is not what the frame and the schema promise."""
    if len(data) != frame.end - frame.begin or digest_of(data) != frame.digest:
        return None
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(data), schema)
        batch.validate(full=True)
    except (pa.ArrowException, ValueError, OSError, MemoryError):
        return None
    if batch.num_rows != frame.rows or any(
        not f.nullable and c.null_count for f, c in zip(schema, batch.columns, strict=True)
    ):
        return None
    return batch


def remove(f: SpoolFile) -> None:
    """Remove a spool file. The data goes first: sums without data are worth nothing, data without sums might be."""
    f.path.unlink(missing_ok=True)
    f.path.with_suffix(SUMS).unlink(missing_ok=True)
