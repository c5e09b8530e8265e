"""Every format of an answer, to the byte, over a query that has every hard type; and files that are whole or absent."""

from __future__ import annotations

import csv
import io
import json
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from megascope.analyze.formats import FORMATS
from megascope.analyze.grid import grid
from megascope.analyze.output import write, write_file
from megascope.analyze.session import Session
from megascope.analyze.text import printable
from megascope.store.errors import MegascopeError, Refused

GOLDEN = Path(__file__).parent / "golden"

HARD = r"""
SELECT * FROM (VALUES
    (9223372036854775807::BIGINT, 18446744073709551615::UBIGINT, 99999999999999999999999999999999999999::HUGEINT,
     -12345678901234567890.123456789::DECIMAL(38, 9), 'nan'::DOUBLE, 0.1::FLOAT, true,
     'a "quoted", ünïcödé 名前' || chr(10) || 'second line',
     DATE '2020-02-29', TIMESTAMP_NS '2020-01-01 00:00:00.123456789', TIMESTAMPTZ '2020-01-01 01:02:03.5+00',
     TIME '23:59:59.999999', 'infinity'::TIMESTAMP, '\xAB\x00'::BLOB,
     [1, NULL, 3], {'k': 'v"', 'n': [1.5]}, MAP {'a': 1, 'b': NULL}, 'x'::ENUM ('x', 'y'), [1, 2]::INT[2], NULL),
    (-9223372036854775808, 0, -99999999999999999999999999999999999999, 0, '-inf', 1e30::FLOAT, false, '',
     DATE '0001-01-01', TIMESTAMP_NS '1969-12-31 23:59:59.999999999', TIMESTAMPTZ '1969-12-31 23:59:59+00',
     TIME '00:00:00', '-infinity', '',
     [], {'k': '', 'n': []}, MAP {}, 'y', [3, 4], NULL),
    (NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
     NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)
) AS t(i64, u64, huge, dec, f64, f32, bool, text, day, moment, zoned, clock, forever, bytes,
       list, struct, map, enum, pair, none)
"""


def _golden(form: str, content: bytes) -> Path:
    """The golden file; delete it to have it written anew, and read what changed."""
    path = GOLDEN / f"answer.{form}"
    if not path.exists():
        path.write_bytes(content)
        pytest.fail(f"{path} was missing and has been written: read it")
    return path


@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_text_is_golden(form: str, session: Session) -> None:
    """To the byte."""
    out = io.BytesIO()
    write(session.run(HARD), form, out)
    assert out.getvalue() == _golden(form, out.getvalue()).read_bytes()


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_binary_is_golden(form: str, session: Session) -> None:
    """To every value and type: Parquet's bytes name the writer's version, and what lies under a null is undefined."""
    out = io.BytesIO()
    write(session.run(HARD), form, out)
    path = _golden(form, out.getvalue())
    read = (lambda data: pq.read_table(pa.BufferReader(data))) if form == "parquet" else _stream
    found, golden = read(out.getvalue()), read(path.read_bytes())
    assert found.schema == golden.schema
    assert found.schema.names[:3] == ["i64", "u64", "huge"]
    # NaN equals nothing, so that column is compared as text.
    assert found.drop_columns("f64").equals(golden.drop_columns("f64"))
    assert str(found["f64"].to_pylist()) == str(golden["f64"].to_pylist()) == "[nan, -inf, None]"
    assert found["i64"].to_pylist() == [(1 << 63) - 1, -(1 << 63), None]


def _stream(data: bytes) -> pa.Table:
    return pa.ipc.open_stream(data).read_all()


def test_csv_is_read_back(session: Session) -> None:
    """Another reader finds the values; null and empty text differ."""
    out = io.BytesIO()
    write(session.run(HARD), "csv", out)
    text = out.getvalue().decode()
    first, second, third = csv.DictReader(io.StringIO(text))
    assert first["text"] == 'a "quoted", ünïcödé 名前\nsecond line'
    assert (first["i64"], second["i64"]) == (str((1 << 63) - 1), str(-(1 << 63)))
    assert first["huge"] == "9" * 38
    assert set(third.values()) == {""}
    assert ',"",' in text.splitlines()[-2]
    assert set(text.splitlines()[-1]) == {","}


def test_json_is_read_back(session: Session) -> None:
    """One object a line; integers and decimals keep their digits; what JSON has no number for is text."""
    out = io.BytesIO()
    write(session.run(HARD), "json", out)
    first, second, third = (json.loads(line, parse_float=Decimal) for line in out.getvalue().splitlines())
    assert first["i64"] == (1 << 63) - 1
    assert first["u64"] == (1 << 64) - 1
    assert first["huge"] == 10**38 - 1
    assert first["dec"] == Decimal("-12345678901234567890.123456789")
    assert first["struct"] == {"k": 'v"', "n": [Decimal("1.5")]}
    assert first["map"] == [{"key": "a", "value": 1}, {"key": "b", "value": None}]
    assert (first["f64"], second["f64"]) == ("NaN", "-Infinity")
    assert (first["moment"], second["moment"]) == ("2020-01-01T00:00:00.123456789", "1969-12-31T23:59:59.999999999")
    assert first["zoned"] == "2020-01-01T01:02:03.500000Z"
    assert (first["forever"], second["forever"]) == ("infinity", "-infinity")
    assert first["list"] == [1, None, 3]
    assert set(third.values()) == {None}


@pytest.mark.parametrize("form", FORMATS)
def test_limit_cuts_and_tells(form: str, session: Session) -> None:
    """At most so many rows, across batches and inside lists; `more` only where there were more."""
    nested = ", [i, i + 1] AS l, {'a': i} AS s, MAP {i: 'x'} AS m" if form == "json" else ""
    sql = f"SELECT i{nested} FROM range(66000) t(i)"
    for limit, more in ((0, True), (3, True), (65_900, True), (66_000, False), (None, False)):
        out = io.BytesIO()
        written = write(session.run(sql), form, out, limit=limit)
        assert (written.rows, written.more) == (66_000 if limit is None else limit, more)
        last = written.rows - 1
        if form == "json" and written.rows:
            assert json.loads(out.getvalue().splitlines()[-1]) == {
                "i": last,
                "l": [last, last + 1],
                "s": {"a": last},
                "m": [{"key": last, "value": "x"}],
            }
        if form == "parquet":
            assert pq.read_metadata(pa.BufferReader(out.getvalue())).num_rows == written.rows
        if form == "arrow":
            assert _stream(out.getvalue()).num_rows == written.rows


def test_no_rows_have_a_header(session: Session) -> None:
    """An empty answer still has columns, in the formats that can say so."""
    for form, size in (("csv", 4), ("json", 0)):
        out = io.BytesIO()
        assert write(session.run("SELECT 1 AS a, 2 AS b WHERE false"), form, out).rows == 0
        assert len(out.getvalue()) == size
    out = io.BytesIO()
    write(session.run("SELECT 1 AS a WHERE false"), "arrow", out)
    assert _stream(out.getvalue()).schema.names == ["a"]


def test_columns_of_one_name(session: Session) -> None:
    """JSON objects and data frames hold each name once."""
    out = io.BytesIO()
    write(session.run("SELECT 1 AS a, 2 AS a, 3 AS a_1, 4 AS a"), "json", out)
    assert json.loads(out.getvalue()) == {"a": 1, "a_1": 2, "a_1_1": 3, "a_2": 4}


@pytest.mark.parametrize(
    ("form", "sql"),
    [
        ("parquet", "SELECT INTERVAL 1 DAY AS x"),
        ("parquet", "SELECT 170141183460469231731687303715884105727::HUGEINT AS x"),
        ("arrow", "SELECT 170141183460469231731687303715884105727::HUGEINT AS x"),
    ],
)
def test_what_a_format_cannot_hold(form: str, sql: str, session: Session, tmp_path: Path) -> None:
    """One line, and no file."""
    with pytest.raises(MegascopeError, match=f"{form} cannot hold it .*; cast that column to VARCHAR"):
        write_file(session.run(sql), form, tmp_path / "x")
    assert list(tmp_path.iterdir()) == []
    out = io.BytesIO()
    write(session.run(sql), "csv", out)
    assert out.getvalue() in (b"x\nP1D\n", b"x\n170141183460469231731687303715884105727\n")


@pytest.mark.parametrize("form", FORMATS)
def test_failed_query_leaves_no_file(form: str, session: Session, tmp_path: Path) -> None:
    """An error in the middle of the answer: no file, no part of one, and what was there stays."""
    (tmp_path / "old").write_text("old")
    sql = "SELECT CASE WHEN i < 150000 THEN i ELSE error('late') END AS x FROM range(200000) t(i)"
    for name, force in (("new", False), ("old", True)):
        with pytest.raises(MegascopeError, match="late"):
            write_file(session.run(sql), form, tmp_path / name, force=force)
    assert [p.name for p in tmp_path.iterdir()] == ["old"]
    assert (tmp_path / "old").read_text() == "old"


def test_files_are_not_overwritten(session: Session, tmp_path: Path) -> None:
    """Only force replaces; places where no file can be are refused before."""
    path = tmp_path / "x.csv"
    assert write_file(session.run("SELECT 1 AS a"), "csv", path).rows == 1
    with pytest.raises(Refused, match="it exists; give another name or --force"):
        write_file(session.run("SELECT 2 AS a"), "csv", path)
    assert path.read_text() == "a\n1\n"
    write_file(session.run("SELECT 2 AS a"), "csv", path, force=True)
    assert path.read_text() == "a\n2\n"
    for bad, why in ((tmp_path, "is a directory"), (tmp_path / "no" / "x", "there is no directory")):
        with pytest.raises(Refused, match=why):
            write_file(session.run("SELECT 1"), "csv", bad)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Refused, match="it exists"):
        write_file(session.run("SELECT 1"), "csv", tmp_path / "link")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "x.csv"]


def test_plan_is_drawn(session: Session) -> None:
    """EXPLAIN prints its drawing, not a cell."""
    out = io.BytesIO()
    write(session.run("EXPLAIN SELECT count(*) FROM workers"), "table", out, width=40)
    text = out.getvalue().decode()
    assert text.startswith("╭─")
    assert "explain_key" not in text


@given(
    st.lists(
        st.tuples(st.text(max_size=60), st.integers(-(1 << 63), (1 << 63) - 1), st.text(max_size=200)), max_size=5
    ),
    st.integers(20, 120),
)
def test_table_fits(rows: list[tuple[str, int, str]], width: int) -> None:
    """No line is wider than the terminal, no number is cut, no text commands it; what is left out is named."""
    names = ["name", "n", "a rather long column name"]
    columns = [
        pa.array([row[i] for row in rows], type_) for i, type_ in enumerate((pa.string(), pa.int64(), pa.string()))
    ]
    laid = grid(pa.table(columns, names), width)
    assert all(cell_len(line) <= width for line in laid.lines)
    assert all(line.isprintable() for line in laid.lines)
    assert len(laid.lines) == len(rows) + 2
    if "n" not in laid.left_out:
        for row, line in zip(rows, laid.lines[2:], strict=True):
            assert str(row[1]) in line
    assert laid.left_out == names[len(names) - len(laid.left_out) :]


def test_numbers_are_aligned() -> None:
    """Numbers to the right, text to the left, cut text ends in an ellipsis."""
    table = pa.table({"name": ["a", "a very long name indeed"], "n": [7, None], "x": [1.5, 22.25]})
    assert grid(table, 24).lines == [
        "name           n      x",
        "───────────  ────  ─────",
        "a               7    1.5",
        "a very lon…  null  22.25",
    ] or grid(table, 24).lines == [
        "name            n      x",
        "───────────  ────  ─────",
        "a               7    1.5",
        "a very lon…  null  22.25",
    ]


def test_control_characters_are_shown() -> None:
    """Names come from whoever wrote the trace."""
    assert printable("a\x1b[2Jb\n\u202e") == "a\\x1b[2Jb\\n\\u202e"
