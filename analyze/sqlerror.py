"""DuckDB's errors as one line: what is wrong, where in the user's text, and DuckDB's own suggestion.

The session asks DuckDB for errors as JSON, which carry a byte position; an error without one is stated without.
"""

from __future__ import annotations

import json
import re

import duckdb

from ..store.errors import Exit, MegascopeError
from .text import printable

WHAT = "cannot run the query"

_DAMAGE = (
    duckdb.IOException,
    duckdb.SerializationException,
    duckdb.InternalException,
    duckdb.FatalException,
)
_LOST_PART = re.compile(
    r"(?:Cannot access|No files found|No such file|Cannot open)[^\"]*\"[^\"]*?(\w+/[\w-]+\.parquet)"
)
_JSON = '{"exception_type"'
_CUT = 400


def place(sql: str, position: int) -> str:
    """`line 2, column 7` (from 1, in characters) of the byte at `position` of `sql` in UTF-8."""
    before = sql.encode()[: max(position, 0)].decode(errors="ignore")
    return f"line {before.count(chr(10)) + 1}, column {len(before) - before.rfind(chr(10))}"


def decode(error: BaseException) -> tuple[str, int | None]:
    """Message and byte position of a DuckDB error."""
    text = str(error)
    try:
        told = json.loads(text[text.index(_JSON) :])
        message, position = str(told["exception_message"]), told.get("position")
        return message, int(position) if position is not None else None
    except (ValueError, KeyError, TypeError, RecursionError):
        head, _, body = text.partition(": ")
        return (body if head.endswith("Error") else text).partition("\n\nLINE ")[0], None


def gone(message: str) -> MegascopeError | None:
    """The error to show where a part was removed while it was read, as a rolling recording does; None for another."""
    match = _LOST_PART.search(message)
    if match is None:
        return None
    why = f"{match[1]} is there no more: a rolling recording has retired it since the trace was opened"
    return MegascopeError("cannot read the trace", printable(why), "ask again; the trace is opened anew")


def _is_damage(error: BaseException) -> bool:
    """Whether a file is to blame: what Thrift cannot read is an error without a class, or Python cannot even say it."""
    if isinstance(error, (*_DAMAGE, UnicodeError)) or type(error) is duckdb.Error:
        return True
    return any(sign in str(error) for sign in ("Failed to read file", '"Data Corruption"'))


def translate(error: BaseException, sql: str, shift: int = 0) -> MegascopeError:
    """The error to show for `error`, raised while `sql` ran; `shift` is added to DuckDB's byte position.

    A mistake in the text has exit code 3; a trace that cannot be read and exhausted memory have 1.
    """
    message, position = decode(error)
    if (lost := gone(message)) is not None:
        return lost
    if isinstance(error, duckdb.OutOfMemoryException):
        why, todo = message.splitlines()[0], "ask for less at once, or give more with --memory"
        return MegascopeError(WHAT, why[:_CUT], todo)
    if _is_damage(error):
        return MegascopeError("cannot read the trace", printable(message[:_CUT]), "run megascope check on it")
    # Advice about DuckDB's own settings is of no use where they are locked.
    message = re.split(r"\s(?:Use \"?SET |For more information)", message)[0]
    where = f" ({place(sql, position + shift)})" if position is not None else ""
    lines = [line.strip().rstrip("!.") for line in message.splitlines() if line.strip()]
    return MegascopeError(WHAT, "; ".join(lines)[:_CUT] + where, code=Exit.REFUSED)
