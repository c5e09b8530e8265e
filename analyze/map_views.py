"""Views of what programs' maps held: one per map, in the schema `maps`, as the trace's own manifest declares them."""

from __future__ import annotations

from ..store import map_streams
from ..store.reader import Trace
from .catalogue import DUCKDB_TYPES, View, ViewColumn

SCHEMA = map_streams.KEY
_SELECTION = ViewColumn(
    "program_name", "VARCHAR", "", "name of the program; its rows in `programs` and `coverage` have the id", True, True
)


def map_views(trace: Trace) -> dict[str, View]:
    """The views of a trace's maps, by the name under which a query finds them: maps.PROGRAM_MAP."""
    out = {}
    for name, table in trace.maps.items():
        columns = tuple(
            ViewColumn(c.name, DUCKDB_TYPES[c.type], c.unit, c.meaning, c.nullable, added=False) for c in table
        )
        sql = (
            f'SELECT m.*, p.name AS program_name FROM "stored_{name}" AS m '
            "LEFT JOIN stored_programs AS p ON m.program = p.program"
        )
        out[name] = View(name, table.meaning, (*columns, _SELECTION), (name, "programs"), (), ("maps",), False, sql)
    return out


def quoted(view: str) -> str:
    """A view's name as SQL writes it: with its schema, if it has one."""
    return ".".join(f'"{part}"' for part in view.split("."))
