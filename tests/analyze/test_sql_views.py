"""Every view declares what DuckDB makes of it, on traces of every state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import recordings

from megascope.analyze import catalogue
from megascope.analyze.session import Session
from megascope.store import tables


@pytest.mark.parametrize("record", [recordings.empty, recordings.sealed, recordings.unsealed])
def test_types_are_as_declared(record: Callable[[Path], Path], tmp_path: Path) -> None:
    """Names, order and types, whether rows come from parts, from the spool or from nowhere."""
    with Session.open(record(tmp_path / "x.mscope"), threads=1) as session:
        for view in catalogue.views().values():
            told = session.run(f"DESCRIBE {view.name}").read_all()
            found = list(zip(told["column_name"].to_pylist(), told["column_type"].to_pylist(), strict=True))
            assert found == [(c.name, c.type) for c in view.columns], view.name


def test_every_declared_table_has_a_view() -> None:
    """Streams, derived tables, side tables, programs, hooks and loss kinds; the trace itself before all."""
    names = list(catalogue.views())
    assert names[0] == "trace"
    assert set(names) == {*catalogue.ORDER, *catalogue.DECLARED}
    assert {t.name for t in (*tables.STREAMS, *tables.DERIVED, *tables.SIDE_TABLES)} <= catalogue.DECLARED.keys()


def test_every_column_says_what_it_means() -> None:
    """A view without meaning, or a time without unit, helps nobody."""
    for view in catalogue.views().values():
        assert view.meaning.endswith("."), view.name
        for column in view.columns:
            assert column.meaning, (view.name, column.name)
            assert column.unit == "ns" or not column.name.endswith("_ns"), (view.name, column.name)


def test_header_continues_over_lines() -> None:
    """A column's meaning may take two lines; a bare `--` ends the header."""
    view = catalogue.parse_view(
        "v",
        "-- table: workers\n-- reads: workers, hooks\n-- coverage: none\n-- column: x BIGINT [ns]: one\n--   two\n"
        "--\n-- a comment\nSELECT 1;\n",
    )
    assert view.columns[-1] == catalogue.ViewColumn("x", "BIGINT", "ns", "one two", nullable=True, added=True)
    assert view.reads == ("workers", "hooks")
    assert view.sql.endswith("SELECT 1")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("-- tables: x", "unknown header key 'tables'"),
        ("-- no key", "not a header line"),
        ("-- coverage: most", "coverage 'most' is none of"),
        ("-- column: x: y", "not a column"),
    ],
)
def test_header_is_checked(line: str, why: str) -> None:
    """A slip in a view's file is found when it is read, not by who asks."""
    text = f"{line}\n-- table: workers\n-- reads: workers\n-- coverage: none\n\nSELECT 1"
    with pytest.raises(ValueError, match=why):
        catalogue.parse_view("v", text)
