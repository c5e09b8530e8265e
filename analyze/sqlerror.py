"""DuckDB's errors as one line: what is wrong, where in the user's text, and DuckDB's own suggestion.

The session asks DuckDB for errors as JSON, which carry a byte position; an error without one is stated without.
"""

from __future__ import annotations

import json
import re

import duckdb

from ..store.errors import Exit, MegascopeError

WHAT = "cannot run the query"

_DAMAGE = (
    duckdb.IOException,
    duckdb.SerializationException,
    duckdb.InternalException,
    duckdb.FatalException,
)
_CUT = 400


def place(sql: str, position: int) -> str:
    """`line 2, column 7` (from 1, in characters) of the byte at `position` of `sql` in UTF-8."""
    before = sql.encode()[: max(position, 0)].decode(errors="ignore")
    return f"line {before.count(chr(10)) + 1}, column {len(before) - before.rfind(chr(10))}"


def decode(error: BaseException) -> tuple[str, int | None]:
    """Message and byte position of a DuckDB error."""
    text = str(error)
    head, _, body = text.partition(": ")
    try:
        told = json.loads(body)
        message, position = str(told["exception_message"]), told.get("position")
        return message, int(position) if position is not None else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return (body if head.endswith("Error") else text).partition("\n\nLINE ")[0], None


def translate(error: BaseException, sql: str, shift: int = 0) -> MegascopeError:
    """The error to show for `error`, raised while `sql` ran; `shift` is added to DuckDB's byte position.

    A mistake in the text has exit code 3; a trace that cannot be read and exhausted memory have 1.
    """
    message, position = decode(error)
    if isinstance(error, duckdb.OutOfMemoryException):
        why, todo = message.splitlines()[0], "ask for less at once, or give more with --memory"
        return MegascopeError(WHAT, why[:_CUT], todo)
    if isinstance(error, _DAMAGE):
        return MegascopeError("cannot read the trace", message[:_CUT], "run megascope check on it")
    # Advice about DuckDB's own settings is of no use where they are locked.
    message = re.split(r"\s(?:Use \"?SET |For more information)", message)[0]
    where = f" ({place(sql, position + shift)})" if position is not None else ""
    lines = [line.strip().rstrip("!.") for line in message.splitlines() if line.strip()]
    return MegascopeError(WHAT, "; ".join(lines)[:_CUT] + where, code=Exit.REFUSED)
