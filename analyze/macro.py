"""Functions that queries may call besides DuckDB's own: one .sql file each, with a header like a view's.

    -- call: count_bounds(observed, eligible)     name and parameters
    -- returns: STRUCT(low BIGINT, high BIGINT)   DuckDB's name of the type
    -- meaning: Between which numbers …
    -- reads: flow                                what the expression below reads, as stored_<name>
    -- calls: utc                                 macros that it calls

A macro is put in place of its call when DuckDB plans a query, and so may do what a query may: no more.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from .catalogue import names_in, parse_header, sql_files

_CALL = re.compile(r"(?P<name>\w+)\((?P<parameters>[\w\s,]*)\)")


@dataclass(frozen=True)
class Macro:
    """One macro. `call` is how it is written, `returns` DuckDB's name of its type; `reads` and `calls` as in a View."""

    name: str
    call: str
    returns: str
    meaning: str
    reads: tuple[str, ...]
    calls: tuple[str, ...]
    sql: str

    @property
    def statement(self) -> str:
        """What makes it."""
        return f"CREATE OR REPLACE MACRO {self.call} AS {self.sql}"


def parse_macro(name: str, text: str) -> Macro:
    """Read one macro's file. Raises ValueError for a header of another form."""
    said, sql = parse_header(name, text, ("call", "returns", "meaning", "reads", "calls"))
    (call,) = said["call"]
    match = _CALL.fullmatch(call)
    if match is None or match["name"] != name:
        raise ValueError(f"{name}.sql: not a call of {name}: {call!r}")
    return Macro(
        name, call, said["returns"][0], said["meaning"][0], names_in(said, "reads"), names_in(said, "calls"), sql
    )


@cache
def macros() -> dict[str, Macro]:
    """Every macro by name, in alphabetical order."""
    return {name: parse_macro(name, text) for name, text in sorted(sql_files("macros").items())}
