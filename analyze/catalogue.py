"""The views that people ask: one .sql file each, whose header declares what the view adds.

A header is the file's leading `-- key: value` lines; one indented by two more blanks continues the line before:

    -- table: events                     columns of this table of `store.tables` come first, in their order
    -- meaning: One row per …            a named table's own, unless said here
    -- reads: events, task_classes       what the SQL below reads, as stored_<name>
    -- calls: utc                        macros that it calls, see `analyze.macro`
    -- coverage: rows, host_ring         how its completeness is stated, see `analyze.coverage`
    -- portable: yes                     keeps to the SQL that DuckDB, Spark and DataFusion share
    -- column: hook_name VARCHAR: name of the hook
    -- column: time TIMESTAMP_NS [UTC]: when it fired

Meaning, unit and type of a declared table's columns stand in `store.tables` alone; the session refuses a view whose
types differ from what DuckDB reports for it. The files of macros and reports have headers of the same form.
"""

from __future__ import annotations

import re
from collections.abc import Collection
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

DECLARED = {t.name: t for t in (*tables.STREAMS, *tables.DERIVED, *tables.KEPT_TABLES, *DESCRIBED)}

ORDER: tuple[str, ...] = (
    *("trace", "events", "tasks", "waits", "requests", "request_tasks", "steps", "workers", "queues", "comm"),
    *("bubbles", "tiles", "coverage", "loss", "now", "intervals"),
)
"""The views that people meet first; the others follow as they are declared."""

COVERAGE_KINDS = ("rows", "pairs", "intervals", "loss", "workers", "host_ring", "maps", "none")

Said = dict[str, list[str]]
"""What a header says, by key."""

_HEADER = re.compile(r"--\s?(?P<key>[a-z]+): (?P<value>.*)")
_COLUMN = re.compile(
    r"(?P<name>\w+) (?P<type>[A-Z_]+(?:\([\w\s,]+\))?(?:\[\])?)(?: \[(?P<unit>[^\]]+)\])?: (?P<meaning>.+)"
)


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
    """One view. `reads` are the stored inputs and `calls` the macros its SQL names; `coverage`: of COVERAGE_KINDS."""

    name: str
    meaning: str
    columns: tuple[ViewColumn, ...]
    reads: tuple[str, ...]
    calls: tuple[str, ...]
    coverage: tuple[str, ...]
    portable: bool
    sql: str


def parse_header(name: str, text: str, keys: Collection[str]) -> tuple[Said, str]:
    """What the header of the file `name` says of `keys`, and the SQL below it.

    Raises ValueError, naming the line, for a header that does not keep to the form above.
    """
    said: Said = {}
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
    unknown = said.keys() - set(keys)
    if unknown:
        raise ValueError(f"{name}.sql: unknown header key {min(unknown)!r}")
    # The line `--` is the header's end, and no part of what people are shown.
    body += lines[body : body + 1] == ["--"]
    return said, "\n".join(lines[body:]).strip().removesuffix(";")


def names_in(said: Said, key: str) -> tuple[str, ...]:
    """The comma-separated names that a header gives for `key`; none where it gives nothing."""
    return tuple(part.strip() for text in said.get(key, ()) for part in text.split(","))


def parse_view(name: str, text: str) -> View:
    """Read one view's file.

    Raises ValueError, naming the line, for a header that does not keep to the form above.
    """
    said, sql = parse_header(name, text, ("table", "meaning", "reads", "calls", "coverage", "portable", "column"))
    table = DECLARED[said["table"][0]] if "table" in said else None
    declared = tuple(
        ViewColumn(c.name, DUCKDB_TYPES[c.type], c.unit, c.meaning, c.nullable, added=False) for c in table or ()
    )
    coverage = names_in(said, "coverage")
    for kind in coverage:
        if kind not in COVERAGE_KINDS:
            raise ValueError(f"{name}.sql: coverage {kind!r} is none of {', '.join(COVERAGE_KINDS)}")
    return View(
        name=name,
        meaning=table.meaning if table and "meaning" not in said else said["meaning"][0],
        columns=declared + tuple(parse_column(name, text) for text in said.get("column", ())),
        reads=names_in(said, "reads"),
        calls=names_in(said, "calls"),
        coverage=coverage,
        portable=said.get("portable") == ["yes"],
        sql=sql,
    )


def parse_column(file: str, text: str) -> ViewColumn:
    """A column from `name TYPE [unit]: meaning`. Raises ValueError for a text of another form."""
    match = _COLUMN.fullmatch(text)
    if match is None:
        raise ValueError(f"{file}.sql: not a column: {text!r}")
    return ViewColumn(match["name"], match["type"], match["unit"] or "", match["meaning"], nullable=True, added=True)


def sql_files(folder: str) -> dict[str, str]:
    """The text of every .sql file of a folder of this package, by name."""
    files = resources.files(__package__).joinpath(folder).iterdir()
    return {f.name[:-4]: f.read_text(encoding="utf-8") for f in files if f.name.endswith(".sql")}


@cache
def views() -> dict[str, View]:
    """Every view by name, in the order in which people meet them."""
    found = sql_files("views")
    order = [*ORDER, *(name for name in DECLARED if name not in ORDER)]
    names = sorted(found, key=lambda name: (order.index(name) if name in order else len(order), name))
    return {name: parse_view(name, found[name]) for name in names}
