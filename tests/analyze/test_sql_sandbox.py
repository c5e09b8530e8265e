"""SQL only reads, and only the views: every way out is refused on one line and leaves no trace of itself."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import recordings

from megascope.analyze.sandbox import MAX_TEXT
from megascope.analyze.session import Session
from megascope.store.errors import Exit, MegascopeError


class Yard:
    """A directory with a trace, a home and a working directory, all watched."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("home", "work"):
            (root / name).mkdir()
        (root / "work" / "secret.csv").write_text("a\n1\n")
        self.trace = recordings.sealed(root / "night.mscope")
        self.part = next((self.trace / "events").glob("*.parquet"))
        self.before = self.content()

    def content(self) -> dict[str, str]:
        """Every file's hash."""
        files = (p for p in self.root.rglob("*") if p.is_file())
        return {str(p.relative_to(self.root)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    """One yard for all escapes: what one of them left would be found by the next."""
    yard = Yard(tmp_path_factory.mktemp("yard"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(yard.root / "work")
        patch.setenv("HOME", str(yard.root / "home"))
        patch.setenv("MEGASCOPE_SECRET", "do not tell")
        yield yard


@pytest.fixture(scope="module")
def locked(yard: Yard) -> Iterator[Session]:
    """A session as everyone gets it."""
    with Session.open(yard.trace, threads=1) as session:
        yield session


@pytest.fixture(scope="module")
def with_files(yard: Yard) -> Iterator[Session]:
    """A session with --allow-files."""
    with Session.open(yard.trace, threads=1, allow_files=True) as session:
        yield session


WRITES = r"""
COPY (SELECT 1) TO 'out.csv'
COPY events TO 'out.parquet' (FORMAT parquet)
COPY (SELECT 1) TO '{part}' (FORMAT parquet)
copy events from 'secret.csv'
COPY (SELECT 1) TO '/dev/stdout'
EXPORT DATABASE 'out'
IMPORT DATABASE 'out'
ATTACH 'out.db'
ATTACH 'out.db' AS d (READ_ONLY)
ATTACH ':memory:' AS d
DETACH memory
INSTALL httpfs
FORCE INSTALL httpfs FROM core
LOAD httpfs
LOAD 'out.duckdb_extension'
UPDATE EXTENSIONS
SET threads = 1
SET memory_limit = '1TB'
SET lock_configuration = false
SET enable_external_access = true
SET allowed_directories = ['/']
SET temp_directory = 'out'
SET VARIABLE class_names = ['x']
RESET threads
RESET VARIABLE class_names
PRAGMA version
PRAGMA enable_profiling
PRAGMA profiling_output = 'out.json'
PRAGMA database_list
CREATE TABLE t (a INT)
CREATE TEMP TABLE t AS SELECT 1
CREATE OR REPLACE VIEW events AS SELECT 1
CREATE MACRO m(x) AS x
CREATE SCHEMA s
CREATE TYPE e AS ENUM ('a')
CREATE SEQUENCE s
CREATE SECRET s (TYPE s3)
CREATE PERSISTENT SECRET s (TYPE s3)
CREATE INDEX i ON events (t)
DROP VIEW events
ALTER VIEW events RENAME TO e
COMMENT ON VIEW events IS 'x'
INSERT INTO events VALUES (1)
INSERT INTO stored_workers SELECT * FROM workers
UPDATE events SET t = 0
DELETE FROM events
TRUNCATE events
MERGE INTO events USING workers ON true WHEN MATCHED THEN DELETE
CALL pragma_version()
CALL enable_logging(storage = 'file', storage_path = 'out')
CHECKPOINT
VACUUM
ANALYZE
BEGIN
COMMIT
ROLLBACK
USE memory
PREPARE p AS SELECT 1
EXECUTE p
DEALLOCATE p
EXPLAIN COPY (SELECT 1) TO 'out.csv'
EXPLAIN ANALYZE COPY (SELECT 1) TO 'out.csv'
EXPLAIN (ANALYZE) COPY (SELECT 1) TO 'out.csv'
EXPLAIN (ANALYZE, FORMAT json) COPY (SELECT 1) TO '{part}' (FORMAT parquet)
/* SELECT */ EXPLAIN /* x */ ANALYZE -- y\n COPY (SELECT 1) TO 'out.csv'
EXPLAIN ANALYZE CREATE TABLE t AS SELECT 1
EXPLAIN ANALYZE INSERT INTO events VALUES (1)
EXPLAIN ANALYZE PRAGMA version
EXPLAIN ANALYZE SET threads = 1
EXPLAIN ANALYZE WITH x AS (INSERT INTO t VALUES (1) RETURNING *) FROM x
EXPLAIN EXPLAIN SELECT 1
WITH x AS (INSERT INTO t VALUES (1) RETURNING *) SELECT * FROM x
WITH x AS (DELETE FROM t RETURNING *) SELECT * FROM x
WITH x AS (UPDATE t SET a = 1 RETURNING *) SELECT * FROM x
SELECT * FROM (WITH x AS MATERIALIZED (INSERT INTO t VALUES (1) RETURNING *) FROM x)
SELECT (WITH x AS (INSERT INTO t VALUES (1) RETURNING a) SELECT a FROM x)
""".strip().splitlines()

READS = r"""
SELECT * FROM 'secret.csv'
FROM 'secret.csv'
SELECT * FROM "secret.csv"
FROM 'sec*.csv'
SELECT * FROM '{part}'
FROM (SELECT * FROM '/etc/passwd')
SELECT (SELECT max(a) FROM 'secret.csv')
SELECT 1 WHERE 1 IN (FROM 'secret.csv')
WITH x AS (FROM 'secret.csv') SELECT 1
WITH RECURSIVE x AS (SELECT 1 UNION ALL SELECT a FROM 'secret.csv') FROM x
SELECT 1 UNION ALL FROM 'secret.csv'
SELECT * FROM events, LATERAL (SELECT * FROM read_csv('secret.csv'))
SELECT 1 ORDER BY (SELECT a FROM 'secret.csv')
SELECT sum(1) OVER (ORDER BY (SELECT a FROM 'secret.csv'))
SELECT list_transform([1], lambda x: (SELECT a FROM 'secret.csv'))
SELECT 1 LIMIT (SELECT a FROM 'secret.csv')
PIVOT 'secret.csv' ON a IN (1)
UNPIVOT 'secret.csv' ON a
DESCRIBE 'secret.csv'
SUMMARIZE 'secret.csv'
DESCRIBE SELECT * FROM 'secret.csv'
EXPLAIN FROM 'secret.csv'
EXPLAIN ANALYZE FROM 'secret.csv'
FROM read_csv('secret.csv')
FROM READ_CSV('secret.csv')
FROM "read_csv"('secret.csv')
FROM main.read_csv('secret.csv')
FROM system.main.read_csv('secret.csv')
FROM read_csv_auto('secret.csv')
FROM sniff_csv('secret.csv')
FROM read_json('secret.csv')
FROM read_json_objects('secret.csv')
FROM read_ndjson('secret.csv')
FROM read_parquet('{part}')
FROM parquet_scan('{part}')
FROM parquet_metadata('{part}')
FROM parquet_schema('{part}')
FROM parquet_file_metadata('{part}')
FROM parquet_kv_metadata('{part}')
FROM parquet_bloom_probe('{part}', 't', 1)
FROM read_text('/etc/passwd')
FROM read_blob('/proc/self/environ')
FROM read_duckdb('out.db')
FROM glob('*')
FROM glob('{trace}/*')
FROM query('SELECT 1')
FROM query('COPY (SELECT 1) TO ''out.csv''')
FROM query_table('events')
FROM query_table(['secret.csv'])
FROM histogram('secret.csv', a)
FROM histogram_values('secret.csv', a)
FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))
SELECT json_serialize_plan('FROM read_csv(''secret.csv'')')
FROM seq_scan('events')
FROM arrow_scan(1, 2, 3)
FROM arrow_scan_dumb(1, 2, 3)
FROM python_arrow_scan(1, 2, 3)
FROM pandas_scan(1)
FROM python_map_function(1)
FROM enable_logging()
FROM enable_profiling(save_location = 'out.json')
FROM duckdb_logs()
FROM duckdb_settings()
FROM duckdb_secrets()
FROM duckdb_variables()
FROM duckdb_views()
FROM duckdb_columns()
FROM duckdb_external_file_cache()
FROM which_secret('s3://x', 's3')
FROM pragma_database_size()
FROM pragma_table_info('events')
FROM checkpoint()
FROM force_checkpoint()
FROM add_grammar_extension('x')
SELECT getenv('MEGASCOPE_SECRET')
SELECT "getenv"('MEGASCOPE_SECRET')
SELECT main.getenv('MEGASCOPE_SECRET')
SELECT 'MEGASCOPE_SECRET'.getenv()
SELECT list_transform(['HOME'], lambda x: GETENV(x))
SELECT current_setting('temp_directory')
SELECT getvariable('class_names')
SELECT write_log('x')
SELECT nextval('s')
SELECT sleep_ms(10)
FROM stored_events
FROM temp.main.stored_events
FROM spool_events
FROM duckdb_settings
FROM duckdb_tables
FROM sqlite_master
FROM information_schema.tables
FROM pg_catalog.pg_settings
FROM pg_catalog.pg_class
FROM system.information_schema.columns
FROM other.events
FROM trace_path
FROM yard
WITH "secret.csv" AS (SELECT 1) SELECT * FROM main."secret.csv"
SELECT * FROM (WITH "secret.csv" AS (SELECT 1) FROM "secret.csv"), 'secret.csv'
SHOW threads
SHOW DATABASES
SELECT * FROM (SHOW ALL TABLES)
SELECT $1
SELECT ?
SELECT $name
""".strip().splitlines()

TWICE = """
SELECT 1; SELECT 2
SELECT 1; COPY (SELECT 1) TO 'out.csv'
; SELECT 1; COPY (SELECT 1) TO 'out.csv';
SELECT 1 /* ; */; /* ; */ DROP VIEW events -- ;
EXPLAIN SELECT 1; CREATE TABLE t (a INT)
SELECT ';'; SELECT 2
SELECT $$;$$; SELECT 2
PIVOT events ON hook
SELECT * FROM (PIVOT events ON hook USING count(*))
EXPLAIN PIVOT events ON hook

 ;
-- only a comment
/* only a comment */
""".strip("\n").split("\n")


@pytest.mark.parametrize("text", [*WRITES, *READS, *TWICE])
def test_refused(text: str, yard: Yard, locked: Session) -> None:
    """One line, exit code 3; the trace, the home and the working directory are as before."""
    sql = text.replace("\\n", "\n").replace("{part}", str(yard.part)).replace("{trace}", str(yard.trace))
    with pytest.raises(MegascopeError) as refused:
        locked.run(sql).read_all()
    assert refused.value.code == Exit.REFUSED
    assert "\n" not in str(refused.value)
    assert "do not tell" not in str(refused.value)
    assert yard.content() == yard.before


@pytest.mark.parametrize("text", [*WRITES, *TWICE])
def test_files_allowed_writes_are_not(text: str, yard: Yard, with_files: Session) -> None:
    """--allow-files lets a query read; one statement that only asks is still all there is."""
    sql = text.replace("\\n", "\n").replace("{part}", str(yard.part))
    with pytest.raises(MegascopeError):
        with_files.run(sql).read_all()
    assert yard.content() == yard.before


def test_files_allowed_are_read(with_files: Session, locked: Session) -> None:
    """For one's own use: join a file with the trace. What hands out raw pointers stays shut."""
    sql = "SELECT count(*) AS n FROM events JOIN 'secret.csv' ON hook = a JOIN read_csv('secret.csv') USING (a)"
    assert with_files.run(sql).read_all()["n"].to_pylist() == [20]
    assert with_files.touched(sql) == ["events"]
    for text in ("FROM arrow_scan(1, 2, 3)", "SELECT getenv('HOME')", "FROM query('SELECT 1')", "FROM stored_events"):
        with pytest.raises(MegascopeError, match="the query is refused"):
            with_files.run(text)
    with pytest.raises(MegascopeError, match=r"may not read the file secret\.csv .*--allow-files lifts this"):
        locked.run(sql)


ADMITTED = r"""
SELECT 1
SELECT 1;
  -- first\n SELECT 1 ; -- last
((SELECT 1) UNION ALL (SELECT 2))
FROM events
FROM events SELECT count(*)
TABLE workers
VALUES (1), (2)
WITH e AS (SELECT * FROM events) SELECT count(*) FROM e
WITH events AS (SELECT * FROM events LIMIT 3) SELECT count(*) FROM events
WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 3) FROM r
SELECT * FROM main.workers
SELECT * FROM memory.main.workers
SELECT * FROM WORKERS
SELECT DISTINCT ON (hook) hook, t FROM events ORDER BY hook, t DESC NULLS LAST LIMIT 10 OFFSET 1
SELECT * FROM events LIMIT 10%
SELECT * EXCLUDE (t) REPLACE (hook + 1 AS hook) FROM events
SELECT COLUMNS('t.*') FROM events
SELECT hook, count(*) FILTER (WHERE t > 100), percentile_cont(0.5) WITHIN GROUP (ORDER BY t) FROM events GROUP BY ALL
SELECT t, lag(t) OVER w FROM events WINDOW w AS (PARTITION BY worker ORDER BY seq) QUALIFY lag(t) OVER w IS NOT NULL
SELECT hook, worker, count(*) FROM events GROUP BY GROUPING SETS ((hook), (worker), ()) HAVING count(*) > 1
SELECT * FROM events ASOF JOIN workers ON events.worker = workers.worker AND events.t >= workers.sm
SELECT count(*) FROM events SEMI JOIN workers USING (worker)
SELECT count(*) FROM events, LATERAL (SELECT events.t + 1), unnest([1, 2]), generate_series(1, 2)
SELECT count(*) FROM events TABLESAMPLE 10%
SELECT list_transform([1], lambda x: x + 1), {'a': 1}, map {1: 2}, [x FOR x IN [1, 2] IF x > 1]
PIVOT events ON hook IN (3, 4) USING count(*) GROUP BY worker
UNPIVOT workers ON sm, monitor INTO NAME k VALUE v
DESCRIBE events
DESCRIBE SELECT t FROM events
DESC events
SHOW events
SUMMARIZE workers
SHOW TABLES
show all tables;
DESCRIBE
SELECT function_name FROM duckdb_functions() WHERE function_name = 'lag'
EXPLAIN SELECT t FROM events
explain analyze select count(*) from events
EXPLAIN (ANALYZE, FORMAT json) SELECT count(*) FROM events
/* a */ EXPLAIN -- b\n (SELECT t FROM events)
EXPLAIN FROM events
EXPLAIN VALUES (1)
EXPLAIN WITH a AS (SELECT 1) FROM a
SELECT 'COPY x TO y; ATTACH z', "worker" FROM workers
SELECT try(1 // 0), TRY_CAST('x' AS INT), DATE '2020-01-01' + INTERVAL 1 DAY
SELECT 1 AS read_csv, 2 AS getenv
""".strip().splitlines()


@pytest.mark.parametrize("text", ADMITTED)
def test_admitted(text: str, yard: Yard, locked: Session) -> None:
    """What people write runs, and leaves nothing behind either."""
    locked.run(text.replace("\\n", "\n")).read_all()
    assert yard.content() == yard.before


@pytest.mark.parametrize(
    ("sql", "views"),
    [
        ("SELECT 1", []),
        ("SELECT * FROM events JOIN workers USING (worker)", ["events", "workers"]),
        ("SELECT (SELECT max(t_end) FROM coverage) FROM loss WHERE kind IN (SELECT kind FROM loss_kinds)", None),
        ("WITH events AS (SELECT * FROM workers) SELECT * FROM events", ["workers"]),
        ("WITH events AS (SELECT * FROM events) SELECT * FROM events", ["events"]),
        ("WITH RECURSIVE events AS (SELECT 1 AS n UNION ALL SELECT n FROM events WHERE n < 0) FROM events", []),
        ("SELECT * FROM (WITH events AS (SELECT 1) FROM events), workers, (FROM events)", ["workers", "events"]),
        ("WITH a AS (FROM now), b AS (FROM a) SELECT 1", ["now"]),
        ("EXPLAIN SELECT * FROM Requests", ["requests"]),
        ("SUMMARIZE hooks", ["hooks"]),
        ("SHOW events", ["events"]),
        ("SHOW TABLES", []),
    ],
)
def test_touched(sql: str, views: list[str] | None, locked: Session) -> None:
    """Views are found wherever a query reads them; a CTE of the same name is none, where it is in scope."""
    touched = locked.touched(sql)
    if views is None:
        assert sorted(touched) == ["coverage", "loss", "loss_kinds"]
    else:
        assert touched == views


def test_mistakes_are_placed(locked: Session) -> None:
    """Line and column of the user's own text, whatever it was parsed as, and a suggestion."""
    for sql, where in [
        ("SELECT *\nFROM evnts", r'no view evnts \(line 2, column 6\); did you mean "events"\?'),
        ("SELECT 'é', bad FROM events", r"\(line 1, column 13\)"),
        ("EXPLAIN\n SELECT bad FROM events", r"\(line 2, column 9\)"),
        ("EXPLAIN ANALYZE SELECT 1 FROM 'x.csv'", r"\(line 1, column 31\)"),
        ("  SELECT tt FROM events", r'Candidate bindings: "t".* \(line 1, column 10\)'),
        ("SELECT * FRO events", r"syntax error .* \(line 1, column \d+\)"),
        ("SELECT abss(1)", r'Did you mean "abs".* \(line 1, column 8\)'),
        ("SELECT 'a'::INT", r"\(line 1, column 11\)"),
        ("SELECT 1; SELECT 2", r"holds 2 statements \(line 1, column 10\); ask one"),
        ("PIVOT events ON hook", r"PIVOT .* several statements; name them"),
    ]:
        with pytest.raises(MegascopeError, match=where):
            locked.run(sql).read_all()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT " + "(" * 20_000 + "1" + ")" * 20_000,
        "SELECT " + "[" * 200 + "]" * 200,
        "SELECT * FROM " + "(SELECT * FROM " * 240 + "workers" + ")" * 240,
        "SELECT 1" + " UNION ALL SELECT 1" * 10_000,
        "SELECT 1" + "+1" * 20_000,
        "/**/" * 20_000 + "x",
        "EXPLAIN " + "/**/" * 20_000 + "COPY x TO 'y'",
        "-" * 20_000,
        "SELECT '" + "x" * MAX_TEXT + "'",
        "SELECT '\ud800'",
        "SELECT '\x00' FROM",
        "\x00",
        "SELECT 1 FROM \u00a0\u2003events,",
        "\ufeffCOPY (SELECT 1) TO 'out.csv'",
        "ＣＯＰＹ (SELECT 1) TO 'out.csv'",
    ],
    ids=lambda sql: ascii(sql[:24]),
)
def test_hostile_text(sql: str, yard: Yard, locked: Session) -> None:
    """Deep, long or strange: an answer or one line, and soon."""
    try:
        locked.run(sql).read_all()
    except MegascopeError as refused:
        assert "\n" not in str(refused)
    assert yard.content() == yard.before


def test_two_fences_behind_the_parser(yard: Yard, locked: Session) -> None:
    """Were a statement to slip through, DuckDB itself would open no other file and change no setting."""
    for sql in (
        "COPY (SELECT 1) TO 'out.csv'",
        "FROM read_csv('secret.csv')",
        "FROM glob('*')",
        "ATTACH 'out.db'",
        "LOAD httpfs",
        "INSTALL httpfs",
        "SET enable_external_access = true",
        "SET allowed_paths = ['/etc/passwd']",
        "SET lock_configuration = false",
        "CREATE PERSISTENT SECRET s (TYPE http)",
    ):
        with pytest.raises(Exception, match=r"disabled|locked|Cannot|cannot|not allowed"):
            locked._con.execute(sql).fetchall()
    assert yard.content() == yard.before
    assert os.listdir(yard.root / "home") == []  # noqa: PTH208
