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
from ..store.trace import Part, Trace

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


def _fed(pairer: Pairer, parts: list[Part], tail: pa.Table) -> Iterator[Derived]:
    for part in parts:
        try:
            events = pq.read_table(part.path, columns=list(tables.EVENTS.names)).replace_schema_metadata(None)
            events = events.cast(tables.EVENTS.schema)
        except (OSError, pa.ArrowException, ValueError) as error:
            why = (str(error).splitlines() or ["it cannot be read"])[0]
            what = f"cannot read {part.path.parent.name}/{part.path.name} of the trace"
            raise Refused(what, why[:300], "run megascope check on it") from None
        yield pairer.feed(events)
    if tail.num_rows:
        yield pairer.feed(tail)
