"""What SQL may do here: one statement that only reads, and only through the views.

Three fences stand behind one another, because each alone has a gap. DuckDB's configuration is locked with external
access off; but the trace's parts must stay readable, and where DuckDB may read it may also overwrite (COPY). So the
parser's own word decides that a text is one SELECT or EXPLAIN; but a SELECT may hold an INSERT in a CTE, an EXPLAIN
ANALYZE runs a COPY, and table functions read files, raw pointers or the text of another query. So the parser's tree is
walked, and whatever is not known to be harmless is refused.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import duckdb

from ..store.errors import MegascopeError, Refused
from .map_views import SCHEMA
from .sqlerror import place, translate
from .timerange import events_between
from .window import WHOLE, Window

MAX_TEXT = 1 << 18
"""Bytes of a query. Planning cannot be interrupted, so what it works on is bounded."""
MAX_DEPTH = 250
MAX_SELECTS = 500

_REFUSED = "the query is refused"
_ALL_VIEWS = 'ask "SHOW TABLES" to see every view'
_TODO_WRITE = "queries only read; write an answer to a file with -o"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


TABLE_FUNCTIONS = _words("""
    range generate_series unnest repeat repeat_row json_each json_tree regexp_split_to_table generate_subscripts
    duckdb_functions duckdb_keywords duckdb_types pg_timezone_names icu_calendar_names pragma_version
""")
"""Table functions that neither read files nor run text nor tell of the process."""

FILE_FUNCTIONS = _words("""
    read_csv read_csv_auto sniff_csv read_json read_json_auto read_json_objects read_json_objects_auto read_ndjson
    read_ndjson_auto read_ndjson_objects read_parquet parquet_scan parquet_schema parquet_metadata
    parquet_file_metadata parquet_full_metadata parquet_kv_metadata read_text read_blob glob
""")
"""Table functions that read files: allowed on request."""

_SCALARS = re.compile(
    r"getenv|getvariable|current_setting|nextval|currval|setval|setseed|sleep_ms|pg_sleep|write_log|stats|vector_type"
    r"|json_serialize_plan|in_search_path|to_aggregate_state|finalize|combine|__internal\w*"
)
"""Scalar functions that tell of the process, keep state, sleep, or trust bytes that only DuckDB should make."""

_STRUCTURE = _words("""
    SELECT_NODE SET_OPERATION_NODE RECURSIVE_CTE_NODE CTE_NODE BASE_TABLE SUBQUERY JOIN TABLE_FUNCTION
    EXPRESSION_LIST COLUMN_DATA EMPTY PIVOT SHOW_REF ORDER_MODIFIER LIMIT_MODIFIER LIMIT_PERCENT_MODIFIER
    DISTINCT_MODIFIER ORDER_DEFAULT ASCENDING DESCENDING
""")
"""Kinds of tree nodes besides expressions; INSERT_QUERY_NODE and its like are not among them."""

# Possessive throughout: a text of thousands of comments must not be tried in every grouping.
_GAP = r"(?>\s++|--[^\n]*+(?:\n|$)|/\*(?>.*?\*/))*+"
_EXPLAIN = re.compile(
    rf"{_GAP}explain\b{_GAP}(?P<analyze>analyze\b)?{_GAP}(?P<options>\(\s*+(?:analyze|format)\b[\w\s,]*+\))?{_GAP}",
    re.IGNORECASE | re.DOTALL,
)
_SHOW_TABLES = re.compile(rf"{_GAP}(?:show\s++(?:all\s++)?tables|describe){_GAP};?{_GAP}", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class Statement:
    """An admitted query: exactly what will run, the views it reads in order of mention, and how positions map back.

    `macros` are those it calls; outside `window` of device time no event can matter to it.
    """

    text: str
    views: tuple[str, ...]
    shift: int
    macros: tuple[str, ...] = ()
    window: Window = WHOLE


def admit(
    parser: duckdb.DuckDBPyConnection,
    sql: str,
    views: Mapping[str, str],
    *,
    macros: Collection[str] = (),
    files: bool = False,
) -> Statement:
    """Check that `sql` is one statement that only reads the `views` (name → meaning); with `files` also files.

    Raises Refused with the reason and the place in the text, or the parser's error as MegascopeError (exit code 3).
    """
    try:
        size = len(sql.encode())
    except UnicodeEncodeError as error:
        raise Refused(_REFUSED, f"character {error.start + 1} is not valid text") from None
    if size > MAX_TEXT:
        raise Refused(_REFUSED, f"it has {size:,} bytes, more than {MAX_TEXT:,}", "put long lists in a file")
    if _SHOW_TABLES.fullmatch(sql):
        return Statement(_list_of(views), (), 0)
    found = _parse(parser, sql, sql, 0)
    kind = _kind(found)
    shift = _offset(sql, found.query)
    if kind == "EXPLAIN":
        match = _EXPLAIN.match(found.query)
        inner = found.query[match.end() :] if match else ""
        cut = len(found.query[: match.end()].encode()) if match else 0
        if not inner.strip():
            raise Refused(_REFUSED, "this form of EXPLAIN is not known", "write EXPLAIN SELECT …")
        found = _parse(parser, inner, sql, shift + cut)
        _must_be_select(_kind(found), "EXPLAIN explains a SELECT here, not", found.query)
        tree = _tree(parser, found.query)
        walk = _Walk(sql, views, macros, files, shift + cut + _offset(inner, found.query)).run(tree)
        analyze, options = (match["analyze"] or "", match["options"] or "") if match else ("", "")
        head = " ".join(word for word in ("EXPLAIN", analyze, options) if word) + " "
        return walk.statement(head + found.query, shift + cut - len(head.encode()))
    _must_be_select(kind, "it must be a SELECT or EXPLAIN, not", found.query)
    return _Walk(sql, views, macros, files, shift).run(_tree(parser, found.query)).statement(found.query, shift)


def _parse(parser: duckdb.DuckDBPyConnection, text: str, sql: str, shift: int) -> Any:
    try:
        statements = parser.extract_statements(text)
    except duckdb.Error as error:
        raise translate(error, sql, shift) from None
    if not statements:
        raise Refused(_REFUSED, "it is empty", "write a SELECT, or run megascope schema to see what can be asked")
    if len(statements) > 1:
        where = place(sql, shift + len(statements[0].query.encode()))
        raise Refused(_REFUSED, f"it holds {len(statements)} statements ({where})", "ask one question at a time")
    return statements[0]


def _kind(statement: Any) -> str:
    """The parser's word for the statement; DuckDB's Python knows no name for some (UPDATE EXTENSIONS)."""
    try:
        return str(statement.type.name)
    except ValueError:
        return "another statement"


def _must_be_select(kind: str, why: str, text: str) -> None:
    if kind == "MULTI":
        raise Refused(
            _REFUSED,
            "a PIVOT that finds its own columns is several statements",
            "name them: PIVOT … ON x IN ('a', 'b')",
        )
    if kind != "SELECT":
        word = text.split(maxsplit=1)[0].upper()
        raise Refused(_REFUSED, f"{why} {word[:20] if word.isalpha() else kind}", _TODO_WRITE)


def _offset(outer: str, inner: str) -> int:
    return len(outer[: max(outer.find(inner), 0)].encode())


def _tree(parser: duckdb.DuckDBPyConnection, text: str) -> Any:
    (told,) = parser.execute("SELECT json_serialize_sql(?)", [text]).fetchall()[0]
    try:
        tree = json.loads(told)
    except RecursionError:
        raise Refused(_REFUSED, "it is nested too deeply", "simplify it") from None
    if tree.get("error") or len(tree["statements"]) != 1:
        raise Refused(_REFUSED, "the parser cannot describe it as one SELECT", _TODO_WRITE)
    return tree["statements"][0]["node"]


def _list_of(views: Mapping[str, str]) -> str:
    rows = ", ".join(f"('{name}', '{meaning.replace(chr(39), chr(39) * 2)}')" for name, meaning in views.items())
    return f'SELECT * FROM (VALUES {rows}) AS t("view", meaning)'


def _cte_names(node: dict[str, Any]) -> set[str]:
    ctes = node.get("cte_map")
    return {str(entry.get("key", "")).lower() for entry in (ctes.get("map", ()) if isinstance(ctes, dict) else ())}


class _Walk:
    """One pass over the parser's tree: names what it reads, or raises Refused."""

    def __init__(self, sql: str, views: Collection[str], macros: Collection[str], files: bool, shift: int) -> None:
        self._sql, self._views, self._macros, self._files, self._shift = sql, views, macros, files, shift
        self._touched: dict[str, int] = {}
        """View → how often it stands there."""
        self._called: dict[str, None] = {}
        self._selects = 0
        self._range: Window | None = None

    def statement(self, text: str, shift: int) -> Statement:
        """The query that was walked, which is run as `text`."""
        once = self._touched.get("events") == 1 and self._range is not None
        window = self._range if once and self._range is not None else WHOLE
        return Statement(text, tuple(self._touched), shift, tuple(self._called), window)

    def run(self, root: Any) -> _Walk:
        # A stack of our own: the tree may be deeper than Python's.
        stack: list[tuple[Any, frozenset[str]]] = [(root, frozenset())]
        while stack:
            node, scope = stack.pop()
            if isinstance(node, list):
                stack.extend((child, scope) for child in reversed(node))
            elif isinstance(node, dict):
                self._check(node, scope)
                stack.extend(reversed(list(self._children(node, scope))))
        return self

    def _children(self, node: dict[str, Any], scope: frozenset[str]) -> Iterator[tuple[Any, frozenset[str]]]:
        """A CTE sees those before it; itself only when it is recursive; the rest of its node sees them all."""
        if node.get("type") == "RECURSIVE_CTE_NODE":
            scope = scope | {str(node.get("cte_name", "")).lower()}
        ctes = node.get("cte_map")
        for entry in ctes.get("map", ()) if isinstance(ctes, dict) else ():
            yield entry.get("value"), scope
            scope = scope | {str(entry.get("key", "")).lower()}
        for key, child in node.items():
            if key != "cte_map" and isinstance(child, (dict, list)):
                yield child, scope

    def _check(self, node: dict[str, Any], scope: frozenset[str]) -> None:
        kind = node.get("type")
        if "class" in node:
            self._check_expression(node)
        elif isinstance(kind, str):
            if kind not in _STRUCTURE:
                raise self._refused(node, f"it may hold no {kind.removesuffix('_QUERY_NODE').replace('_', ' ')}")
            self._selects += kind.endswith("_NODE")
            if self._selects > MAX_SELECTS:
                raise Refused(_REFUSED, f"it has more than {MAX_SELECTS} SELECTs", "simplify it")
            if kind == "BASE_TABLE":
                self._check_table(node, scope)
            elif kind == "TABLE_FUNCTION":
                self._check_table_function(node)
            elif kind == "SELECT_NODE" and "events" not in scope | _cte_names(node):
                self._range = events_between(node) or self._range
            elif kind == "SHOW_REF":
                self._check_show(node)

    def _check_expression(self, node: dict[str, Any]) -> None:
        if node["class"] == "PARAMETER":
            raise self._refused(node, "it has a parameter and nothing to put there", "write the value")
        name = str(node.get("function_name", "")).lower()
        if _SCALARS.fullmatch(name):
            raise self._refused(node, f"function {name} is not available here")
        if name in self._macros:
            self._called[name] = None

    def _check_table(self, node: dict[str, Any], scope: frozenset[str]) -> None:
        name, schema = str(node.get("table_name", "")), str(node.get("schema_name", "")).lower()
        catalogue = str(node.get("catalog_name", "")).lower()
        if name.lower() in scope and not schema and not catalogue:
            return
        of_map = f"{SCHEMA}.{name.lower()}"
        if schema == SCHEMA and of_map in self._views and catalogue in ("", "memory"):
            self._touched[of_map] = self._touched.get(of_map, 0) + 1
            return
        if name.lower() in self._views and schema in ("", "main") and catalogue in ("", "memory"):
            self._touched[name.lower()] = self._touched.get(name.lower(), 0) + 1
            return
        if self._files and not schema and not name.startswith(("stored_", "spool_")):
            return
        full = ".".join(part for part in (catalogue, schema, name) if part)
        close = difflib.get_close_matches(name.lower(), self._views, 1)
        todo = f'did you mean "{close[0]}"?' if close else _ALL_VIEWS
        if "/" in name or re.search(r"\.\w+$", name):
            raise self._refused(node, f"it may not read the file {full[:80]}", "--allow-files lifts this")
        raise self._refused(node, f"there is no view {full[:80]}", todo)

    def _check_table_function(self, node: dict[str, Any]) -> None:
        function = node.get("function")
        name = str(function.get("function_name", "")).lower() if isinstance(function, dict) else ""
        if name in TABLE_FUNCTIONS or (self._files and name in FILE_FUNCTIONS):
            return
        if name in FILE_FUNCTIONS:
            raise self._refused(node, f"it may not read files with {name}", "--allow-files lifts this")
        raise self._refused(node, f"table function {name[:80]} is not available here", _ALL_VIEWS)

    def _check_show(self, node: dict[str, Any]) -> None:
        # SHOW x and DESCRIBE x hold a query; SHOW TABLES inside another query and SHOW <setting> hold a name alone.
        if node.get("query") is None:
            name = str(node.get("table_name", "")).strip('"')
            if name.lower() in self._views:
                self._touched[name.lower()] = self._touched.get(name.lower(), 0) + 1
                return
            raise self._refused(node, f"there is nothing to show by the name {name[:80]}", _ALL_VIEWS)

    def _refused(self, node: dict[str, Any], why: str, todo: str = "") -> MegascopeError:
        at = node.get("query_location")
        if isinstance(at, int) and at < MAX_TEXT:
            why += f" ({place(self._sql, at + self._shift)})"
        return Refused(_REFUSED, why, todo)
