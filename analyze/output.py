"""Answers on their way out: table, csv, json, parquet and arrow, to a stream or to a file that appears whole or not.

json is one object a line, so that it streams; csv leaves null empty and writes empty text as `""`; arrow is an IPC
stream. What each value looks like as text stands in `analyze.text`.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from ..store.errors import MegascopeError
from ..store.new_file import file_appears
from .formats import BINARY
from .grid import grid
from .text import encoded, plain, printable

_WHAT = "cannot write the answer"


class Rows(Protocol):
    """An answer: `analyze.result.Result` or a RecordBatchReader."""

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns."""

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Batches of `schema`."""


@dataclass(frozen=True)
class Written:
    """`rows` were written; `more`: there were others beyond the limit; `left_out`: columns without room."""

    rows: int
    more: bool = False
    left_out: list[str] = field(default_factory=list)


def write(rows: Rows, form: str, out: BinaryIO, *, limit: int | None = None, width: int | None = None) -> Written:
    """Write an answer in format `form`, at most `limit` rows of it; a table in `width` cells.

    Raises MegascopeError for values that the format cannot hold, and what reading the rows raises.
    """
    taken = _Taken(rows, limit)
    if form == "table":
        return _write_table(taken, out, width)
    names = _distinct(rows.schema.names)
    if form in BINARY:
        _write_binary(taken, form, out, names)
    else:
        (_write_csv if form == "csv" else _write_json)(taken, out, names)
    return Written(taken.rows, taken.more)


def write_file(rows: Rows, form: str, path: Path, *, force: bool = False, limit: int | None = None) -> Written:
    """Write an answer to `path`, which appears when it is complete.

    Raises Refused for a path that is taken (unless `force`) or no place for a file, otherwise like `write`.
    """
    with file_appears(path, force=force) as out:
        return write(rows, form, out, limit=limit)


class _Taken:
    """The first `limit` rows of an answer; `more` is known once they are taken."""

    def __init__(self, rows: Rows, limit: int | None) -> None:
        self.schema, self.rows, self.more = rows.schema, 0, False
        self._source, self._limit = rows, limit

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._source:
            if self._limit is not None and self.rows + batch.num_rows > self._limit:
                batch, self.more = batch.slice(0, self._limit - self.rows), True
            self.rows += batch.num_rows
            if batch.num_rows:
                yield batch
            if self.more:
                return


def _write_table(rows: _Taken, out: BinaryIO, width: int | None) -> Written:
    table = pa.Table.from_batches(list(rows), rows.schema)
    if rows.schema.names == ["explain_key", "explain_value"]:
        # A plan is a drawing of many lines, not a cell.
        plans = [str(text).splitlines() for text in table["explain_value"].to_pylist()]
        out.write("".join(f"{printable(line)}\n" for plan in plans for line in plan).encode())
        return Written(rows.rows, rows.more)
    laid = grid(table, width)
    out.write("".join(f"{line}\n" for line in laid.lines).encode())
    return Written(rows.rows, rows.more, laid.left_out)


def _write_csv(rows: _Taken, out: BinaryIO, names: Sequence[str]) -> None:
    out.write((",".join(map(_csv, names)) + "\n").encode())
    for batch in rows:
        columns = [[_csv(text) for text in plain(column)] for column in batch.columns]
        out.write("".join(",".join(row) + "\n" for row in zip(*columns, strict=True)).encode())


def _csv(text: str | None) -> str:
    if text is None:
        return ""
    if text and not any(c in text for c in '",\r\n'):
        return text
    return '"' + text.replace('"', '""') + '"'


def _write_json(rows: _Taken, out: BinaryIO, names: Sequence[str]) -> None:
    keys = encoded(pa.array(names, pa.string()))
    for batch in rows:
        columns = [
            [f"{key}: {text}" for text in encoded(column)] for key, column in zip(keys, batch.columns, strict=True)
        ]
        out.write("".join("{" + ", ".join(row) + "}\n" for row in zip(*columns, strict=True)).encode())


def _write_binary(rows: _Taken, form: str, out: BinaryIO, names: Sequence[str]) -> None:
    schema = pa.schema([f.with_name(name) for f, name in zip(rows.schema, names, strict=True)])
    sink = pa.PythonFile(_Counted(out), mode="w")
    try:
        with (
            pq.ParquetWriter(sink, schema, compression="zstd")
            if form == "parquet"
            else pa.ipc.new_stream(sink, schema) as writer
        ):
            for batch in rows:
                # Arrow has 38 digits; DuckDB's widest integers have 39, and would be read back as something else.
                batch.validate(full=True)
                writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
    except pa.ArrowException as error:
        why = str(error).splitlines()[0][:300]
        raise MegascopeError(_WHAT, f"{form} cannot hold it ({why})", "cast that column to VARCHAR") from None


class _Counted(io.RawIOBase):
    """A stream that knows how much went through it: Parquet asks, and a pipe cannot tell."""

    def __init__(self, out: BinaryIO) -> None:
        self._out, self._at = out, 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._out.write(data)
        self._at += len(data)
        return len(data)

    def tell(self) -> int:
        return self._at


def _distinct(names: Iterable[str]) -> list[str]:
    """Column names such that none stands twice: a, a_1, a_2."""
    out: list[str] = []
    for name in names:
        unique, n = name, 0
        while unique in out:
            n += 1
            unique = f"{name}_{n}"
        out.append(unique)
    return out
