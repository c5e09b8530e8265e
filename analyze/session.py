"""One trace, open for questions: a locked DuckDB over its views.

    with Session.open(Path("run.mscope")) as session:
        with session.run("SELECT hook_name, count(*) FROM events GROUP BY ALL") as result:
            table = result.read_all()
        print(*session.coverage_lines(session.touched(…)), sep="\\n")

A trace that is still being recorded is shown as it was when the session opened. A session holds one result at a time
and belongs to one thread; DuckDB's work is done by a thread of its own, so that a deadline or Ctrl-C ends it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any

import duckdb

from ..store.errors import MegascopeError, Refused, Usage
from ..store.reader import Trace
from ..store.scratch import Scratch
from .catalogue import views
from .coverage import Coverage
from .extent import ends_of, extent
from .inputs import SERVING, Inputs, store_serving
from .lookups import set_constants, set_derived_selection, set_variables, set_window
from .macro import macros
from .map_views import SCHEMA, map_views, quoted
from .missing import store_missing
from .result import Result
from .sandbox import MAX_DEPTH, Statement, admit
from .sqlerror import WHAT, decode, gone, translate
from .text import printable
from .window import WHOLE, Window, is_timed

_SPILL_BYTES = 16 << 30
POLL_S = 0.1
"""How long a Ctrl-C may take to be noticed."""


class Session:
    """A trace's views behind a locked DuckDB; use it in a with-statement."""

    def __init__(
        self,
        trace: Trace,
        *,
        threads: int | None = None,
        memory_limit: str | None = None,
        allow_files: bool = False,
    ) -> None:
        """Question an open `trace` and close it in the end; see `open`."""
        self.trace = trace
        self._inputs = Inputs(trace)
        self._allow_files = allow_files
        self._views = views() | map_views(trace)
        self._names = {name: view.meaning for name, view in self._views.items()}
        self._made: set[str] = set()
        self._made_macros: set[str] = set()
        self._stored: dict[str, Window] = {}
        self._window = self._event_parts = WHOLE
        self._lent = False
        self._scratch = Scratch("sql")
        try:
            self._con = self._connect(threads, memory_limit)
        except BaseException:
            self._scratch.remove()
            raise
        # Parsing and coverage run beside an unfinished result, which a second query on one connection would end.
        self._aside = self._con.cursor()
        self._coverage = Coverage(self._aside, self._inputs)
        self._worker = ThreadPoolExecutor(1, "duckdb")

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        threads: int | None = None,
        memory_limit: str | None = None,
        allow_files: bool = False,
    ) -> Session:
        """Open the trace directory at `path`.

        threads: default one per core that this process may use. memory_limit: DuckDB's notation ("2GB"), default half
        of the machine's memory; beyond it DuckDB spills to a private temporary directory, up to 16 GiB or half of what
        is free there. allow_files: SQL may read files too; it still cannot write.
        Raises Refused for a trace that cannot be opened, Usage for a limit that is no limit, MegascopeError where there
        is no temporary directory.
        """
        return cls(Trace.open(path), threads=threads, memory_limit=memory_limit, allow_files=allow_files)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End whatever still runs, and remove what was spilled."""
        self._con.interrupt()
        self._worker.shutdown()
        self._aside.close()
        self._con.close()
        self.trace.close()
        self._scratch.remove()

    def interrupt(self) -> None:
        """End the query that runs, from any thread: whoever waits for it gets MegascopeError.

        DuckDB forgets one that comes before the query has begun, so call it until the query is over.
        """
        self._con.interrupt()

    def run(self, sql: str, *, timeout: float | None = None) -> Result:
        """Run exactly one SELECT or EXPLAIN; `timeout` in seconds counts to the last row read.

        Raises Refused for a text that does more than ask, MegascopeError for a mistake in it (exit code 3), for a part
        that cannot be read, exhausted memory, and the end of `timeout` (exit code 1).
        """
        deadline = None if timeout is None else monotonic() + timeout
        statement = self._admit(sql)
        self._prepare(statement)
        return Result(self._con, lambda work: self._wait(work, timeout, deadline), sql, statement)

    def relation(self, sql: str) -> duckdb.DuckDBPyRelation:
        """A query as a relation of DuckDB, not run yet. It ends with the session, and reading it ends any result.

        Raises like `run`.
        """
        statement = self._admit(sql)
        # A relation is planned anew whenever it is read: what it reads must not depend on what was asked meanwhile.
        self._lent = True
        self._prepare(statement)
        return self._con.sql(statement.text)

    def window(self, begin: int | None = None, end: int | None = None) -> None:
        """Look through [begin, end) of device time (ns; None: from the first, to the last) until told otherwise.

        Every view then has the rows that overlap it, and what it counts is counted of those; side tables, `now` and
        `trace` stay whole, and so does what `coverage_lines` says. Parts without such rows are not even opened.
        Raises Usage for a window that ends before it begins or lies outside the trace, and MegascopeError for parts
        that cannot be read.
        """
        if begin is not None and end is not None and end <= begin:
            raise Usage("cannot look there", f"{begin} to {end} is no stretch of time", "let it end after it begins")
        window = Window(begin, end)
        self._check_inside(window)
        self._window = window
        for name in [name for name, seen in self._stored.items() if seen != self._window and is_timed(name)]:
            self._store(name, self._window)
        self._tell_window()

    @property
    def views(self) -> list[str]:
        """The names of all views, also of those of this trace's maps."""
        return list(self._views)

    def span(self) -> tuple[int, int] | None:
        """Device times [begin, end) of all events in ns, of the intervals of a trace without any; None without both."""
        return self._inputs.span()

    def looked_at(self) -> tuple[int, int] | None:
        """Device times [begin, end) that the views show, in ns: the window's ends, else the trace's; None without."""
        begin, end = ends_of(self._inputs, self._window)
        return None if begin is None or end is None else (begin, end)

    def touched(self, sql: str) -> list[str]:
        """The views that `sql` reads, in order of mention, also those in subqueries and CTEs.

        Raises like `run`, without running it.
        """
        return list(self._admit(sql).views)

    def coverage_lines(self, names: Iterable[str]) -> list[str]:
        """What the answers from these views stand for: a line per view with selection, coverage and loss.

        Raises MegascopeError for coverage or loss that cannot be read.
        """
        try:
            return self._coverage.lines([self._views[name] for name in names])
        except (duckdb.Error, UnicodeError) as error:
            raise translate(error, "") from None

    def _admit(self, sql: str) -> Statement:
        return admit(self._aside, sql, self._names, macros=macros(), files=self._allow_files)

    def _prepare(self, statement: Statement) -> None:
        self._narrow(statement)
        for name in statement.macros:
            self._make_macro(name)
        for name in statement.views:
            self._make(name)

    def _narrow(self, statement: Statement) -> None:
        """Read only the parts of events that this query can see; all of the window's where several views read them."""
        readers = [name for name in statement.views if "events" in self._views[name].reads]
        if not readers:
            return
        alone = readers == ["events"] and not self._lent
        parts = statement.window.within(self._window) if alone else self._window
        if "events" not in self._stored or not self._inputs.same_parts("events", parts, self._event_parts):
            # Rows are left to the query's own WHERE.
            self._store("events", self._window, parts)

    def _connect(self, threads: int | None, memory_limit: str | None) -> duckdb.DuckDBPyConnection:
        if threads is not None and threads < 1:
            raise Usage("cannot open a session", f"{threads} is no number of threads", "give 1 or more")
        pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        spill = min(_SPILL_BYTES, shutil.disk_usage(self._scratch.path).free // 2)
        config: dict[str, str | bool | int | float | list[str]] = {
            "threads": threads or len(os.sched_getaffinity(0)),
            "memory_limit": memory_limit or f"{pages * size // 2}B",
            "temp_directory": str(self._scratch.path / "spill"),
            "max_temp_directory_size": f"{spill}B",
            "secret_directory": str(self._scratch.path),
            "allow_community_extensions": False,
            "allow_persistent_secrets": False,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "errors_as_json": True,
            "max_expression_depth": MAX_DEPTH,
            "python_enable_replacements": False,
            "python_scan_all_frames": False,
        }
        try:
            con = duckdb.connect(":memory:", config=config)
        except duckdb.Error as error:
            raise Usage("cannot open a session", _first_line(error), "give a memory limit such as 2GB") from None
        if not self._allow_files:
            con.execute("SET allowed_paths = ?", [self._inputs.files])
            con.execute("SET enable_external_access = false")
        # Footers of hundreds of parts are most of what a short query reads.
        con.execute("SET parquet_metadata_cache = true")
        con.execute("SET lock_configuration = true")
        set_constants(con)
        return con

    def _make(self, name: str) -> None:
        """Create a view when it is first asked; opening all of them would cost more than most questions."""
        if name in self._made:
            return
        view = self._views[name]
        try:
            if name.startswith(f"{SCHEMA}."):
                self._con.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
            for source in view.reads:
                self._read(source)
            for macro in view.calls:
                self._make_macro(macro)
            self._con.execute(f"CREATE OR REPLACE VIEW {quoted(name)} AS {view.sql}")
            found = self._con.sql(f"FROM {quoted(name)} LIMIT 0")
            types = dict(zip(found.columns, map(str, found.types), strict=True))
        except (duckdb.Error, UnicodeError) as error:
            raise self._unreadable(f"{name} of the trace", error) from None
        for column in view.columns:
            if types.get(column.name) != column.type:
                raise Refused(
                    f"cannot read {name} of the trace",
                    f"its column {column.name} is {types.get(column.name, 'missing')}, not {column.type}",
                    "run megascope check on it",
                )
        self._made.add(name)

    def _make_macro(self, name: str) -> None:
        if name in self._made_macros:
            return
        macro = macros()[name]
        try:
            for source in macro.reads:
                self._read(source)
            for other in macro.calls:
                self._make_macro(other)
            self._con.execute(macro.statement)
        except (duckdb.Error, UnicodeError) as error:
            raise self._unreadable(f"what {name} needs of the trace", error) from None
        self._made_macros.add(name)

    def _read(self, source: str) -> None:
        """Make an input of views and macros."""
        if source in self._stored:
            return
        if source in ("flow", "gone"):
            store_missing(self._con, self._aside, self._inputs, self._coverage.account)
            self._stored |= {"flow": WHOLE, "gone": WHOLE}
        elif source == SERVING:
            store_serving(self._con, self._aside, self._inputs)
            self._stored[source] = WHOLE
        elif source == "derivation":
            set_derived_selection(self._con, self._aside, self._inputs)
            self._stored[source] = WHOLE
        elif source == "window":
            self._stored[source] = self._window
            self._tell_window()
        elif source == "clock":
            set_variables(self._con, self.trace, source)
            self._stored[source] = WHOLE
        else:
            self._store(source, self._window)
            set_variables(self._con, self.trace, source)

    def _store(self, source: str, window: Window, parts: Window | None = None) -> None:
        if source == "events":
            self._event_parts = parts or window
        try:
            self._inputs.store(self._con, source, window, parts=parts)
        except (duckdb.Error, UnicodeError) as error:
            raise self._unreadable(f"{source} of the trace", error) from None
        self._stored[source] = window

    def _tell_window(self) -> None:
        """Tell the macros, if any of them was asked."""
        if "window" in self._stored:
            set_window(self._con, self._window, ends_of(self._inputs, self._window))

    def _check_inside(self, window: Window) -> None:
        """Raise Usage for a window through which nothing of the trace can be seen."""
        span = self._inputs.span()
        if span is None or window.overlaps(span[0], span[1] - 1):
            return
        first, last = extent(self._inputs) or span
        if window.overlaps(first, last - 1):
            return
        what = "cannot look there"
        todo = f"the trace goes from {first} to {last} ns, which is {(last - first) / 1e6:,.3f} ms"
        if window.begin is not None and window.begin >= last:
            raise Usage(what, f"{window.begin} ns is {(window.begin - last) / 1e6:,.3f} ms after the trace's end", todo)
        end = window.end if window.end is not None else first
        raise Usage(what, f"{end} ns is {(first - end) / 1e6:,.3f} ms before the trace begins", todo)

    def _unreadable(self, what: str, error: Exception) -> MegascopeError:
        # DuckDB quotes a damaged file's bytes in its errors, which Python then cannot decode.
        line = _first_line(error)
        return gone(line) or MegascopeError(f"cannot read {what}", line, "run megascope check on it")

    def _wait(self, work: Callable[[], Any], timeout: float | None, deadline: float | None) -> Any:
        """Do `work` on DuckDB's thread; at the deadline or on Ctrl-C interrupt it."""
        future = self._worker.submit(work)
        done = False
        try:
            while not done:
                left = POLL_S if deadline is None else deadline - monotonic()
                # Never without end: polars has system calls restarted after a signal, so that one would not wake us.
                done = bool(wait([future], min(max(left, 0.0), POLL_S))[0])
                if left <= 0 and not done:
                    break
        except BaseException:
            self._interrupt(future)
            raise
        if not done:
            self._interrupt(future)
            raise MegascopeError(
                WHAT, f"it took longer than {timeout:g} s", "ask for less, or give more with --timeout"
            )
        return future.result()

    def _interrupt(self, future: Future[Any]) -> None:
        # Again and again: DuckDB forgets an interrupt that arrives before it has begun to execute.
        while not future.done():
            self._con.interrupt()
            wait([future], 0.02)
        future.exception()


def _first_line(error: Exception) -> str:
    return printable((decode(error)[0].splitlines() or ["unknown"])[0])
