"""Whatever is typed, the answer is rows or one line."""

from __future__ import annotations

import hashlib
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.analyze.session import Session
from megascope.store.errors import MegascopeError

SQL = r"""
SELECT FROM WHERE GROUP BY ORDER HAVING LIMIT OFFSET UNION ALL EXCEPT INTERSECT WITH RECURSIVE AS MATERIALIZED
( ) , . ; * + - / // % = <> < > :: -> ->> [ ] { } : ' " $$ -- /* */ ? $1 := => | || & ~ ^ ! @ # ` \ é 名
events coverage loss now requests workers hooks trace hook t seq task worker class hook_name time aux stored_events
COPY TO ATTACH CREATE TABLE INSERT INTO VALUES UPDATE SET DELETE DROP EXPLAIN ANALYZE DESCRIBE SUMMARIZE SHOW TABLES
PRAGMA CALL EXECUTE PREPARE BEGIN PIVOT UNPIVOT ON IN USING QUALIFY WINDOW OVER PARTITION FILTER DISTINCT LATERAL
JOIN ASOF LEFT SEMI ANTI NATURAL POSITIONAL CASE WHEN THEN ELSE END CAST TRY_CAST INTERVAL DATE NULL TRUE NOT EXISTS
count(*) sum(t) max(t) list(t) unnest([1,2]) range(3) read_csv('x') getenv('HOME') glob('*') query('SELECT')
0 1 -1 9223372036854775807 9223372036854775808 1e400 0.1 'a' 'x.parquet' "events" '2020-01-01' x'ab' e'\n'
"""
WORDS = [*SQL.split(), "\n", "\t", "\x00", "\u202e", "\ufeff", "\u00a0"]
HEADS = ["", "SELECT ", "SELECT * FROM events WHERE ", "FROM workers ", "EXPLAIN SELECT ", "WITH a AS ("]
BYTES = st.binary(max_size=40).map(lambda b: b.decode("utf-8", "surrogateescape"))


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Words of SQL in any order, some of them joined to a beginning that parses."""
    words = draw(st.lists(st.sampled_from(WORDS), max_size=14))
    head = draw(st.sampled_from(HEADS))
    return head + draw(st.sampled_from([" ", "  ", "\n", ""])).join(words)


@settings(max_examples=200)
@given(
    st.one_of(texts(), st.text(max_size=80), st.binary(max_size=40).map(lambda b: b.decode("utf-8", "surrogateescape")))
)
def test_rows_or_one_line(session: Session, trace_path: Path, sql: str) -> None:
    """Never a traceback of ours, DuckDB's, Arrow's or Python's; never more than one line; never a changed trace."""
    before = _content(trace_path)
    try:
        rows = 0
        for batch in session.run(sql, timeout=10):
            rows += batch.num_rows
            if rows > 100_000:
                break
    except MegascopeError as refused:
        assert len(str(refused).splitlines()) == 1
    assert _content(trace_path) == before
    assert session.run("SELECT count(*) AS n FROM workers").read_all()["n"].to_pylist() == [2]


def _content(path: Path) -> dict[str, str]:
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in path.rglob("*") if p.is_file()}
