"""Megascope in Python: a recording's views and reports as Arrow, polars or DuckDB, computed when they are asked for.

with megascope.open("run.mscope") as run:
    slow = run.tasks().lazy().filter(pl.col("exec_ns") > 20_000).collect()
    print(run.report("classes"))
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from .analyze.map_views import quoted
from .analyze.report import Answer, ask
from .analyze.report_text import report_text
from .analyze.session import Session
from .analyze.when import moment
from .store.errors import Usage

if TYPE_CHECKING:
    import duckdb
    import polars as pl


class Recording:
    """A trace that is open for questions; made by `megascope.open`. One of its answers can be read at a time.

    Every view has a name (`views`) and gives a `Query`; the methods below are those most asked for. A trace that is
    being recorded is shown as it was when it was opened.
    """

    def __init__(self, session: Session) -> None:
        self._session: Session | None = session

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"<Recording {self.session.trace.path}, {self.session.trace.state}>"
            if self._session
            else "<Recording, closed>"
        )

    @property
    def session(self) -> Session:
        """What answers. Raises Usage when the recording was closed."""
        if self._session is None:
            raise Usage("cannot ask", "the recording was closed", "open it again")
        return self._session

    @property
    def views(self) -> list[str]:
        """The names of all views, also of this trace's maps; `megascope schema` tells of the columns of the others."""
        return self.session.views

    def close(self) -> None:
        """Let go of the trace. Queries that were not read cannot be any more."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def window(self, begin: int | str | None = None, end: int | str | None = None) -> None:
        """Look through [begin, end) until told otherwise: device time in ns, or text as for `megascope report --from`.

        Raises Usage for what is no time or lies outside the trace, and Refused for one that this trace cannot tell.
        """
        span, fits = self.session.span(), self.session.trace.manifest["clock"]["fits"]
        times = [moment(t, span and span[0], fits).t if isinstance(t, str) else t for t in (begin, end)]
        self.session.window(*times)

    def sql(self, query: str) -> Query:
        """One SELECT on the views, as `megascope sql` takes it; nothing is computed yet.

        Raises Refused for a text that does more than ask, MegascopeError for a mistake in it.
        """
        self.session.touched(query)
        return Query(self, query)

    def view(self, name: str) -> Query:
        """All rows of a view. Raises Usage for a name that is none."""
        # Of one that was closed nothing is known any more: reading it says so.
        if self._session is not None and name not in self.views:
            raise Usage(f"cannot show {name}", "there is no such view", f"the views are {', '.join(self.views)}")
        return Query(self, f"SELECT * FROM {quoted(name)}")

    def events(self) -> Query:
        """One row per recorded firing of a hook."""
        return self.view("events")

    def tasks(self) -> Query:
        """One row per task generation."""
        return self.view("tasks")

    def waits(self) -> Query:
        """One row per wait of a worker."""
        return self.view("waits")

    def requests(self) -> Query:
        """One row per request generation."""
        return self.view("requests")

    def steps(self) -> Query:
        """One row per iteration of the engine."""
        return self.view("steps")

    def workers(self) -> Query:
        """One row per worker."""
        return self.view("workers")

    def coverage(self) -> Query:
        """What became of the events at each hook, by interval."""
        return self.view("coverage")

    def loss(self) -> Query:
        """What is known to be missing."""
        return self.view("loss")

    def report(self, name: str = "overview") -> Report:
        """A report, computed now. Raises Usage for a name that is none."""
        return Report(ask(self.session, name))


class Query:
    """A question that is computed each time it is read. Whatever reads Arrow streams may be handed one."""

    def __init__(self, recording: Recording, sql: str) -> None:
        """Made by `Recording.sql` and its like."""
        self._recording, self.text = recording, sql

    def __repr__(self) -> str:
        return f"<Query {self.text!r}>"

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        table: Any = self.arrow()
        return table.__arrow_c_stream__(requested_schema)

    @property
    def schema(self) -> pa.Schema:
        """Columns and their types."""
        with self._recording.session.run(f"SELECT * FROM ({self._inner}) LIMIT 0") as result:
            return result.schema

    @property
    def stands_for(self) -> list[str]:
        """What the rows stand for: a line with selection, coverage and loss for each view that is read."""
        session = self._recording.session
        return session.coverage_lines(session.touched(self.text))

    def batches(self, *, timeout: float | None = None) -> Iterator[pa.RecordBatch]:
        """Rows as they are computed; `timeout` in seconds counts to the last of them.

        Raises MegascopeError for whatever keeps the query from its end.
        """
        with self._recording.session.run(self.text, timeout=timeout) as result:
            yield from result

    def arrow(self, *, timeout: float | None = None) -> pa.Table:
        """All rows. Raises like `batches`."""
        with self._recording.session.run(self.text, timeout=timeout) as result:
            return result.read_all()

    def polars(self, *, timeout: float | None = None) -> pl.DataFrame:
        """All rows. Raises like `batches`."""
        import polars as pl

        frame = pl.from_arrow(self.arrow(timeout=timeout))
        assert isinstance(frame, pl.DataFrame)
        return frame

    def lazy(self) -> pl.LazyFrame:
        """A lazy frame: when it is collected only the columns that it needs are read, and no more rows."""
        import polars as pl
        from polars.io.plugins import register_io_source

        empty = pl.from_arrow(self.schema.empty_table())
        assert isinstance(empty, pl.DataFrame)

        def source(
            columns: list[str] | None, predicate: pl.Expr | None, rows: int | None, _: int | None
        ) -> Iterator[pl.DataFrame]:
            names = "*" if columns is None else ", ".join('"' + c.replace('"', '""') + '"' for c in columns) or "1"
            # Rows are counted before they are filtered, so that polars filters only what it may have.
            limit = "" if rows is None else f" LIMIT {rows}"
            for batch in Query(self._recording, f"SELECT {names} FROM ({self._inner}){limit}").batches():
                frame = pl.from_arrow(pa.Table.from_batches([batch]))
                assert isinstance(frame, pl.DataFrame)
                yield frame if predicate is None else frame.filter(predicate)

        return register_io_source(source, schema=empty.schema)

    def relation(self) -> duckdb.DuckDBPyRelation:
        """A relation of DuckDB, to be filtered, joined and aggregated there; it ends with the recording."""
        return self._recording.session.relation(self.text)

    @property
    def _inner(self) -> str:
        """The text where another query can hold it: a comment at its end must not swallow what follows."""
        return self.text.strip().removesuffix(";") + "\n"


class Report:
    """A report: its rows, and what they stand for. Printed, it is what `megascope report` prints."""

    def __init__(self, answer: Answer) -> None:
        """Made by `Recording.report`."""
        self._answer = answer

    def __repr__(self) -> str:
        return report_text(self._answer)

    @property
    def name(self) -> str:
        """Which report."""
        return self._answer.report.name

    @property
    def stands_for(self) -> list[str]:
        """Selection, coverage and loss of the views that were read."""
        return self._answer.lines

    def arrow(self) -> pa.Table:
        """Its rows; bounds are structs."""
        return self._answer.rows

    def polars(self) -> pl.DataFrame:
        """Its rows; bounds are structs."""
        import polars as pl

        frame = pl.from_arrow(self._answer.rows)
        assert isinstance(frame, pl.DataFrame)
        return frame


def open(
    path: str | Path, *, threads: int | None = None, memory_limit: str | None = None, allow_files: bool = False
) -> Recording:
    """Open the trace directory at `path`; see `megascope.open`."""
    return Recording(Session.open(Path(path), threads=threads, memory_limit=memory_limit, allow_files=allow_files))
