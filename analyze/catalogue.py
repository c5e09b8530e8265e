"""The views that people ask: one .sql file each, whose header declares what the view adds.

A header is the file's leading `-- key: value` lines; one indented by two more blanks continues the line before:

    -- table: events                     columns of this table of `store.tables` come first, in their order
    -- meaning: One row per …            only where no table is named, which has its own
    -- reads: events, task_classes       what the SQL below reads, as stored_<name>
    -- coverage: rows                    how its completeness is stated, see `analyze.coverage`
    -- column: hook_name VARCHAR: name of the hook
    -- column: time TIMESTAMP_NS [UTC]: when it fired

Meaning, unit and type of a declared table's columns stand in `store.tables` alone; the session refuses a view whose
types differ from what DuckDB reports for it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

from ..store import loss, tables

DUCKDB_TYPES = {
    "i16": "SMALLINT",
    "i32": "INTEGER",
    "i64": "BIGINT",
    "u64": "UBIGINT",
    "f64": "DOUBLE",
    "bool": "BOOLEAN",
    "str": "VARCHAR",
    "strs": "VARCHAR[]",
    "u8s": "UTINYINT[]",
    "i64s": "BIGINT[]",
}
"""DuckDB's name for a column type of `store.tables`, of those that a trace stores."""

DESCRIBED = (tables.PROGRAMS, tables.HOOKS_TABLE, loss.LOSS_KINDS_TABLE)
"""Tables without a file in the trace: rendered from the manifest and the declarations."""

DECLARED = {t.name: t for t in (*tables.STREAMS, *tables.SIDE_TABLES, *DESCRIBED)}

COVERAGE_KINDS = ("rows", "intervals", "loss", "workers", "host_ring", "none")

_HEADER = re.compile(r"--\s?(?P<key>[a-z]+): (?P<value>.*)")
_COLUMN = re.compile(r"(?P<name>\w+) (?P<type>[A-Z_]+(?:\[\])?)(?: \[(?P<unit>[^\]]+)\])?: (?P<meaning>.+)")


@dataclass(frozen=True)
class ViewColumn:
    """A column as a view shows it; `type` is DuckDB's name. `added` by the view, or declared in `store.tables`."""

    name: str
    type: str
    unit: str
    meaning: str
    nullable: bool
    added: bool


@dataclass(frozen=True)
class View:
    """One view. `reads` are the stored inputs its SQL names; `coverage` is one of COVERAGE_KINDS."""

    name: str
    meaning: str
    columns: tuple[ViewColumn, ...]
    reads: tuple[str, ...]
    coverage: str
    sql: str


def parse_view(name: str, text: str) -> View:
    """Read one view's file.

    Raises ValueError, naming the line, for a header that does not keep to the form above.
    """
    said: dict[str, list[str]] = {}
    lines = text.splitlines()
    body = next((i for i, line in enumerate(lines) if not line.startswith("-- ")), len(lines))
    key = ""
    for line in lines[:body]:
        if key and line.startswith("--   "):
            said[key][-1] += " " + line[2:].strip()
        elif (match := _HEADER.fullmatch(line.rstrip())) is not None:
            key = match["key"]
            said.setdefault(key, []).append(match["value"].strip())
        else:
            raise ValueError(f"{name}.sql: not a header line: {line!r}")
    unknown = said.keys() - {"table", "meaning", "reads", "coverage", "column"}
    if unknown:
        raise ValueError(f"{name}.sql: unknown header key {min(unknown)!r}")
    table = DECLARED[said["table"][0]] if "table" in said else None
    declared = tuple(
        ViewColumn(c.name, DUCKDB_TYPES[c.type], c.unit, c.meaning, c.nullable, added=False) for c in table or ()
    )
    coverage = said["coverage"][0]
    if coverage not in COVERAGE_KINDS:
        raise ValueError(f"{name}.sql: coverage {coverage!r} is none of {', '.join(COVERAGE_KINDS)}")
    return View(
        name=name,
        meaning=table.meaning if table else said["meaning"][0],
        columns=declared + tuple(_added(name, text) for text in said.get("column", ())),
        reads=tuple(part.strip() for part in said["reads"][0].split(",")),
        coverage=coverage,
        sql="\n".join(lines[body:]).strip().removesuffix(";"),
    )


def _added(view: str, text: str) -> ViewColumn:
    match = _COLUMN.fullmatch(text)
    if match is None:
        raise ValueError(f"{view}.sql: not a column: {text!r}")
    return ViewColumn(match["name"], match["type"], match["unit"] or "", match["meaning"], nullable=True, added=True)


@cache
def views() -> dict[str, View]:
    """Every view by name, in the order in which people meet them: the trace, the streams, then the tables."""
    files = resources.files(__package__).joinpath("views").iterdir()
    found = {f.name[:-4]: f.read_text(encoding="utf-8") for f in files if f.name.endswith(".sql")}
    order = ["trace", *DECLARED]
    names = sorted(found, key=lambda name: (order.index(name) if name in order else len(order), name))
    return {name: parse_view(name, found[name]) for name in names}
