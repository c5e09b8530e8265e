"""Tasks and waits of a trace that has none sealed: put together from its events in memory, while they are few.

A trace that is being recorded, or whose recorder died, has events that no sealing has paired yet. All of them are then
paired anew: the tables are those that sealing will write.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from ..store import tables
from ..store.errors import Refused
from ..store.pairing import Context, Derived, Pairer
from ..store.tiles import TileBuilder
from ..store.trace import Part, Trace

FIRST = -(1 << 63)
"""A frontier before all time, so that no slice is taken for complete before everything is fed."""
EVENTS_MOST = 16_000_000
"""Events that are paired while somebody waits: about 4 s and 2 GB."""


def derive(trace: Trace, parts: list[Part], tail: pa.Table) -> dict[str, pa.Table]:
    """`TASKS` and `WAITS` of the events in `parts` and `tail`, by name.

    Raises Refused for more than EVENTS_MOST events, and for parts that cannot be read.
    """
    rows = sum(part.rows for part in parts) + int(tail.num_rows)
    if rows > EVENTS_MOST:
        raise Refused(
            "cannot read tasks and waits of the trace",
            f"its {rows:,} events are not paired yet",
            "end the recording, or run megascope check --repair on it",
        )
    pairer = Pairer(Context.of(trace.manifest, trace.table("workers")))
    found = [*_fed(pairer, parts, tail), pairer.finish()]
    return {
        "tasks": pa.concat_tables([d.tasks for d in found]),
        "waits": pa.concat_tables([d.waits for d in found]),
    }


def tiles_of(tasks: pa.Table, waits: pa.Table, intervals: pa.Table) -> pa.Table:
    """`TILES` of all tasks and waits, and of what `INTERVALS` says was lost."""
    builder = TileBuilder()
    first = builder.feed(tasks, waits, FIRST, intervals)
    return pa.concat_tables([first, builder.finish()])


def rows_of(parts: list[Part], tail: pa.Table) -> pa.Table:
    """All rows of a stream, in the schema of its tail. Raises Refused for parts that cannot be read."""
    return pa.concat_tables([*(_read(part, tail.schema) for part in parts), tail])


def _fed(pairer: Pairer, parts: list[Part], tail: pa.Table) -> Iterator[Derived]:
    for part in parts:
        yield pairer.feed(_read(part, tables.EVENTS.schema))
    if tail.num_rows:
        yield pairer.feed(tail)


def _read(part: Part, schema: pa.Schema) -> pa.Table:
    try:
        rows = pq.read_table(part.path, columns=schema.names).replace_schema_metadata(None)
        return rows.cast(schema)
    except (OSError, pa.ArrowException, ValueError) as error:
        why = (str(error).splitlines() or ["it cannot be read"])[0]
        what = f"cannot read {part.path.parent.name}/{part.path.name} of the trace"
        raise Refused(what, why[:300], "run megascope check on it") from None
