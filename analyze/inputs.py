"""What the views read: a trace's parts, spool tails, side tables and manifest as `stored_<name>` relations of DuckDB.

Parts are read by DuckDB itself, so that columns and row groups that a query does not need are never touched. Everything
else is an Arrow table in memory. Inputs are made when a view first needs them: opening a trace reads its manifest only.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from ..store import derived, loss, parquet, tables
from ..store.reader import Part, Trace
from .catalogue import views
from .window import WHOLE, Window

_STREAMS = {t.name: t for t in (*tables.STREAMS, *tables.DERIVED)}
_KEPT_TABLES = {t.name: t for t in tables.KEPT_TABLES}
VERIFY_BYTES = 256 << 20
"""A stream's parts up to this size are read once for their checksums, in about 0.2 s."""

_ARROW: dict[str, pa.DataType] = {
    "VARCHAR": pa.string(),
    "BIGINT": pa.int64(),
    "TIMESTAMP": pa.timestamp("us"),
    "VARCHAR[]": pa.list_(pa.string()),
}


class Gone(NamedTuple):
    """`rows` rows from `t_min` to `t_max` (ns; None: not known) that the trace names and cannot give."""

    rows: int
    t_min: int | None
    t_max: int | None


class Inputs:
    """A trace as `stored_<name>` relations and lookups, on as many connections as ask for them."""

    def __init__(self, trace: Trace) -> None:
        """Nothing is read yet."""
        self.trace = trace
        self.streams = _STREAMS | trace.maps
        """Every stream and derived table, by name."""
        self._tails: dict[str, pa.Table] = {}
        self._trusted: dict[Path, int] = {}
        self._lost_span: tuple[int, int] | Literal[False] | None = False

    @property
    def unverified_bytes(self) -> int:
        """Bytes of parts that were too many to have their checksums compared before they were read."""
        return sum(self._trusted.values())

    @property
    def files(self) -> list[str]:
        """Every file that DuckDB may open for this trace, absolute."""
        return [str(part.path.absolute()) for name in self.streams for part in self.trace.parts(name)]

    def tail(self, stream: str) -> pa.Table:
        """Rows that are in the spool only, and of tasks, waits and tiles what no sealed part has yet."""
        if stream not in self._tails:
            self._tails[stream] = self.trace.tail(stream)
        return self._tails[stream]

    def parts(self, stream: str, window: Window = WHOLE) -> list[Part]:
        """Sealed parts with rows in `window`, whose content is what was sealed: DuckDB itself would read a flipped
        byte as another number.

        Above VERIFY_BYTES of them they are taken on trust, and `unverified_bytes` says how much.
        """
        parts = self._overlapping(stream, window)
        if sum(part.bytes for part in parts) > VERIFY_BYTES:
            self._trusted |= {part.path: part.bytes for part in parts}
            return parts
        if not parts:
            return []
        # By the window, not by the times of these parts: one that has lost halves in it is as long as the trace.
        sound = {part.path for part in self.trace.verified(stream, window.begin, window.last)}
        for part in parts:
            if not window.overlaps(part.t_min, part.t_max):
                sound |= {p.path for p in self.trace.verified(stream, part.t_min, part.t_max)}
        return [part for part in parts if part.path in sound]

    def unreadable(self, stream: str) -> list[Gone]:
        """What the trace says it holds of a stream, or of a derived table, and cannot be read."""
        sound = {part.path.name for part in self.parts(stream)}
        entries = derived.parts_of(self.trace.manifest, stream)
        out = [Gone(e["rows"], e["t_min"], e["t_max"]) for e in entries if e["file"] not in sound]
        if spooled := sum(f.rows for f in self.trace.spooled(stream)):
            lost = spooled - int(self.tail(stream).num_rows)
            out += [Gone(lost, None, None)] if lost > 0 else []
        return out

    def _overlapping(self, stream: str, window: Window) -> list[Part]:
        parts = self.trace.parts(stream)
        # A wait that had not ended lasts, but the times of its part do not say so. It is in the last one.
        last = parts[-1:] if stream == "waits" else []
        return [part for part in parts if window.overlaps(part.t_min, part.t_max) or part in last]

    def same_parts(self, stream: str, window: Window, other: Window) -> bool:
        """Whether the same parts have rows in both windows."""
        return self._overlapping(stream, window) == self._overlapping(stream, other)

    def span(self) -> tuple[int, int] | None:
        """Device times [begin, end) of all events, in ns; None without a trace of any.

        Of events that are here no more the manifest, the tasks and the rows of `loss` say when they were; of programs
        that recorded none, the intervals do.
        """
        events = _times(self.trace.manifest, "events")
        tail = self.tail("events")
        if tail.num_rows:
            t = tail["t"].to_numpy()
            events.append((int(t.min()), int(t.max())))
        if not events:
            events = [*_times(self.trace.manifest, "tasks"), *_times(self.trace.manifest, "waits")]
        if lost := self._lost_events():
            events.append(lost)
        if not events:
            events = [x for name in ("intervals", "coverage") for x in self._stretches(name)]
        return (min(t for t, _ in events), max(t for _, t in events) + 1) if events else None

    def _lost_events(self) -> tuple[int, int] | None:
        """First and last device time (ns) of events whose parts repair has put aside."""
        if self._lost_span is False:
            folder, found = f"{parquet.folder_of('events')}/", list[tuple[int, int]]()
            for row in self._rows("loss", ("kind", "detail", "t_begin", "t_end")):
                if row["kind"] == "part_unreadable" and str(row["detail"]).startswith(folder):
                    found += [(row["t_begin"], row["t_end"])] if None not in (row["t_begin"], row["t_end"]) else []
            self._lost_span = (min(t for t, _ in found), max(t for _, t in found)) if found else None
        return self._lost_span or None

    def _stretches(self, stream: str) -> list[tuple[int, int]]:
        return [(r["t_begin"], r["t_end"] - 1) for r in self._rows(stream, ("t_begin", "t_end")) if r["t_end"]]

    def _rows(self, stream: str, columns: tuple[str, ...]) -> list[dict[str, Any]]:
        """The readable rows of a small stream."""
        read = [pq.read_table(part.path, columns=list(columns)) for part in self.parts(stream)]
        return [row for table in (*read, self.tail(stream).select(columns)) for row in table.to_pylist()]

    def store(
        self, con: duckdb.DuckDBPyConnection, name: str, window: Window = WHOLE, *, parts: Window | None = None
    ) -> None:
        """Make `stored_<name>` on `con`; of a stream, with the rows in `window` of the parts in `parts` (or in it).

        `name` is a stream, a side table, programs, hooks, loss_kinds, trace, flow, gone, clock or window. Raises
        duckdb.Error for a part that cannot be read, and what Trace raises for damaged files.
        """
        if name in self.streams:
            self._store_stream(con, self.streams[name], window, window if parts is None else parts)
            return
        manifest = self.trace.manifest
        if name in _KEPT_TABLES:
            table = self.trace.table(name)
        elif name == "trace":
            table = self._trace_table()
        elif name == "programs":
            table = pa.Table.from_pylist(manifest["programs"], schema=tables.PROGRAMS.schema)
        else:
            table = _declared(name, set(manifest["engine"].get("exported_hooks", ())))
        con.register(f"stored_{name}", table)

    def _store_stream(
        self, con: duckdb.DuckDBPyConnection, table: tables.Table, window: Window, within: Window
    ) -> None:
        parts, tail = self.parts(table.name, within), self.tail(table.name)
        columns = ", ".join(f'"{c.name}"' for c in table)
        where = window.condition(table.name)
        selects = []
        if parts:
            files = ", ".join("'" + str(part.path.absolute()).replace("'", "''") + "'" for part in parts)
            selects.append(f"SELECT {columns} FROM read_parquet([{files}], hive_partitioning = false){where}")
        if tail.num_rows or not parts:
            con.register(f"spool_{table.name}", tail)
            selects.append(f'SELECT {columns} FROM "spool_{table.name}"{where}')
        union = " UNION ALL ".join(selects)
        con.execute(f'CREATE OR REPLACE TEMP VIEW "stored_{table.name}" AS {union}')

    def _trace_table(self) -> pa.Table:
        trace, manifest = self.trace, self.trace.manifest
        engine, parts, tail = manifest["engine"], self.parts("events"), self.tail("events")
        span = self.span()
        begin, end = (span[0], span[1] - 1) if span else (None, None)
        epoch_ns = engine.get("epoch_ns") or None
        row = {
            "name": manifest["name"],
            "state": trace.state,
            "created": _utc(manifest["created_utc"]),
            "engine": engine.get("name"),
            "engine_kind": engine.get("kind"),
            "clock_kind": engine.get("clock_kind"),
            "clock_tick_ns": engine.get("clock_tick_ns"),
            "policy": engine.get("policy"),
            "exported_hooks": engine.get("exported_hooks", []),
            "epoch_ns": epoch_ns,
            "first_epoch": begin // epoch_ns if begin is not None and epoch_ns else None,
            "last_epoch": end // epoch_ns if end is not None and epoch_ns else None,
            "t_begin": begin,
            "t_end": end,
            "event_rows": sum(p.rows for p in parts) + tail.num_rows,
            "event_parts": len(parts),
            "spool_rows": tail.num_rows,
            "event_bytes": sum(p.bytes for p in parts),
            "end_reason": (manifest["end"] or {}).get("reason"),
            "end_t": _integer((manifest["end"] or {}).get("t")),
            "format": manifest["format"],
            "abi": ".".join(str(v) for v in manifest["abi"]),
            "schema_hash": manifest["schema_hash"],
            "notes": list(trace.notes),
        }
        schema = pa.schema([pa.field(c.name, _ARROW[c.type]) for c in views()["trace"].columns])
        return pa.Table.from_pylist([row], schema=schema)


SERVING = "serving"
_SERVING_SQL = """
    SELECT hook, request, step, t, since_ns, flags, aux & 4294967295 AS state FROM stored_events WHERE hook IN (10, 11)
"""


def store_serving(con: duckdb.DuckDBPyConnection, aside: duckdb.DuckDBPyConnection, inputs: Inputs) -> None:
    """Make `stored_serving` on `con`: the request and step events of the whole trace, read with `aside`.

    When a request was admitted and when a step began is so in whatever window one looks at it. Raises duckdb.Error and
    what Trace raises for parts that cannot be read.
    """
    inputs.store(aside, "events")
    con.register(f"stored_{SERVING}", aside.sql(_SERVING_SQL).to_arrow_table())


def _times(manifest: dict[str, Any], stream: str) -> list[tuple[int, int]]:
    """First and last device time (ns) of each sealed part of a stream, whether it can be read or not."""
    times = ((e["t_min"], e["t_max"]) for e in derived.parts_of(manifest, stream))
    return [(first, last) for first, last in times if first is not None and last is not None]


def _declared(name: str, exported: set[str]) -> pa.Table:
    if name == "hooks":
        rows: list[dict[str, Any]] = [
            {"hook": h.id, "name": h.name, "aux": h.aux, "meaning": h.meaning, "exported": h.name in exported}
            for h in tables.HOOKS
        ]
        return pa.Table.from_pylist(rows, schema=tables.HOOKS_TABLE.schema)
    rows = [
        {"kind": k.name, "severity": k.severity, "unit": k.unit, "place": k.where, "todo": k.todo}
        for k in loss.LOSS_KINDS
    ]
    return pa.Table.from_pylist(rows, schema=loss.LOSS_KINDS_TABLE.schema)


def _utc(text: str) -> datetime | None:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at.astimezone(UTC).replace(tzinfo=None) if at.tzinfo else at


def _integer(value: Any) -> int | None:
    return value if type(value) is int else None
