"""Rows of one query, as they are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import duckdb
import pyarrow as pa

from ..store.errors import MegascopeError, Refused
from .sandbox import Statement
from .sqlerror import WHAT, decode, translate

BATCH_ROWS = 65_536
_TEXT_ONLY = frozenset(("uhugeint", "bit", "time with time zone", "bignum", "variant", "geometry"))
"""Types whose values Arrow would carry wrongly or not at all."""


class Result:
    """Rows of one query as Arrow batches: iterate, or `read_all`. Reading drives the query."""

    def __init__(
        self,
        con: duckdb.DuckDBPyConnection,
        wait: Callable[[Callable[[], Any]], Any],
        sql: str,
        statement: Statement,
    ) -> None:
        """Begin to run `statement`; `wait` does DuckDB's work under the query's deadline. Made by `Session.run`."""
        self.views = list(statement.views)
        self._con, self._wait, self._sql, self._statement = con, wait, sql, statement
        self._reader: pa.RecordBatchReader | None = None
        self._reader = self._do(self._begin)
        self.schema: pa.Schema = self._reader.schema

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        """The next batch.

        Raises StopIteration at the end, otherwise like `Session.run`.
        """
        if self._reader is None:
            raise StopIteration
        batch: pa.RecordBatch | None = self._do(self._read)
        if batch is None:
            self.close()
            raise StopIteration
        return batch

    def __enter__(self) -> Result:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def read_all(self) -> pa.Table:
        """All rows that are left."""
        return pa.Table.from_batches(list(self), self.schema)

    def close(self) -> None:
        """Read no further; DuckDB drops what it has not computed."""
        self._reader = None

    def _begin(self) -> pa.RecordBatchReader:
        relation = self._con.sql(self._statement.text)
        for name, type_ in zip(relation.columns, relation.types, strict=True):
            bad = next((t for t in _ids(type_) if t in _TEXT_ONLY), None)
            if bad is not None:
                raise Refused(WHAT, f"column {name[:80]} is {bad.upper()}, which Arrow lacks", "cast it to VARCHAR")
        reader: pa.RecordBatchReader = relation.to_arrow_reader(BATCH_ROWS)
        return reader

    def _read(self) -> pa.RecordBatch | None:
        assert self._reader is not None
        try:
            return self._reader.read_next_batch()
        except StopIteration:
            return None

    def _do(self, work: Callable[[], Any]) -> Any:
        try:
            return self._wait(work)
        except MegascopeError:
            self._reader = None
            raise
        except (duckdb.Error, OSError, pa.ArrowException, RuntimeError, ValueError) as error:
            # A failed batch arrives through Arrow, as OSError with DuckDB's text.
            self._reader = None
            raise translate(self._placed(error), self._sql, self._statement.shift) from None

    def _placed(self, error: Exception) -> Exception:
        """The same error with its place: binding through EXPLAIN tells where, a relation does not."""
        if not isinstance(error, (duckdb.BinderException, duckdb.CatalogException)) or decode(error)[1] is not None:
            return error
        explained = self._statement.text.upper().startswith("EXPLAIN ")
        head = "" if explained else "EXPLAIN "
        try:
            self._con.execute(head + self._statement.text)
        except duckdb.Error as again:
            self._statement = Statement(self._statement.text, (), self._statement.shift - len(head))
            return again
        return error


def _ids(type_: Any) -> Iterator[str]:
    yield str(type_.id)
    if type_.id in ("list", "struct", "map", "union", "array"):
        for name, child in type_.children:
            if name != "size":
                yield from _ids(child)
