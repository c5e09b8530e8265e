"""Which programs are queries, where a query's text comes from, and its names: of a trace or a segment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from ...store.errors import MegascopeError, Refused, Usage
from ...store.parquet import last_of_each
from ...store.tables import ENGINE_TABLES, SIDE_TABLES
from ..segment.reader import SegmentReader
from ..segment.told import HostRingReader
from .program import Program

if TYPE_CHECKING:
    from .language import Query

MOST_BYTES = 1 << 18
"""of a file that is read as a query: more than any query that compiles"""
_BINARY = (b"\x7fELF", b"MSPROG")
"""How objects and program images begin."""


def query_text(what: str, *, query: bool = False) -> str | None:
    """The text of a query: `what` itself, or what stands in the file of that name; None for an object or an image.

    query: it is one, even if a file is called so. Raises Usage for what is neither file nor query, Refused for a file
    that is no text.
    """
    if query or ("{" in what and not _is_file(what)):
        return what
    if not what.strip():
        raise Usage("cannot load a program", "its name is empty", "name an object, an image or a file with a query")
    if _is_folder(what):
        todo = "name an object, an image or a file with a query in it, or give the query itself"
        raise Usage(f"cannot load {what}", "it is a directory", todo)
    if not _is_file(what):
        todo = "name an object, an image or a file with a query, or give the query itself"
        raise Usage(f"cannot load {what}", "there is no such file, and it is no query", todo)
    try:
        with Path(what).open("rb") as f:
            begin = f.read(MOST_BYTES)
    except OSError as e:
        raise Refused(f"cannot load {what}", e.strerror or str(e)) from e
    if begin.startswith(_BINARY):
        return None
    try:
        return begin.decode()
    except UnicodeDecodeError:
        raise Refused(
            f"cannot load {what}", "it is neither an object, an image nor text", "name another file"
        ) from None


def query_of(
    program: Program, tables: Mapping[str, pa.Table] | None = None, constants: Mapping[str, int | str] | None = None
) -> Query | None:
    """The query that a program was compiled from, with the same tables and constants; None where it is none."""
    from .language import compile as compile_query

    if "{" not in program.source:
        return None
    try:
        query = compile_query(program.source, tables, constants, program.name)
    except MegascopeError:
        return None
    return query if query.program.hash == program.hash else None


def _is_file(what: str) -> bool:
    """Is there a file of that name? A text that no file can be called is none."""
    try:
        return Path(what).is_file()
    except (OSError, ValueError):
        return False


def _is_folder(what: str) -> bool:
    try:
        return Path(what).is_dir()
    except (OSError, ValueError):
        return False


def tables_of(target: Path) -> dict[str, pa.Table]:
    """The side tables of a trace or a segment, by name. Raises Refused for what is neither, or is damaged."""
    if target.is_dir():
        from ...store.reader import Trace

        with Trace.open(target) as trace:
            return {t.name: trace.table(t.name) for t in SIDE_TABLES}
    with SegmentReader.open(target) as segment:
        return tables_of_segment(segment)


def tables_of_segment(segment: SegmentReader) -> dict[str, pa.Table]:
    """The compiler's tables, and of the engine's what still stands in its host ring. Raises Refused."""
    told, _ = HostRingReader(segment).take()
    out = dict(segment.tables)
    for table in ENGINE_TABLES:
        columns = zip(*told.get(table.name, []), strict=True)
        arrays = [pa.array(values, c.arrow) for values, c in zip(columns, table, strict=False)]
        rows = pa.table(arrays, schema=table.schema) if arrays else table.schema.empty_table()
        out[table.name] = last_of_each(table, rows)
    return out
