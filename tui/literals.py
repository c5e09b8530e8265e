"""Values in SQL: integers and quoted text, and nothing else, so that no name in a trace can leave its place."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable

Value = int | str | None | Iterable[int]


def fill(template: str, **values: Value) -> str:
    """The template with each `{name}` replaced by its value as an SQL literal; lists become `(1, 2)`.

    A text that has been made by this module is passed through `clause` instead.
    """
    literals = {name: _literal(value) for name, value in values.items()}
    lines = textwrap.dedent(template).strip().splitlines()
    # A clause that is empty leaves no empty line.
    alone = (re.fullmatch(r"\s*\{(\w+)\}", line) for line in lines)
    kept = [line for line, name in zip(lines, alone, strict=True) if name is None or literals[name[1]]]
    return "\n".join(kept).format_map(literals)


def _literal(value: Value) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, Clause):
        return str(value)
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, int):
        return str(int(value))
    return "(" + ", ".join(str(int(v)) for v in value) + ")"


class Clause(str):
    """SQL made here, not a value."""

    __slots__ = ()


def where(*conditions: str) -> Clause:
    """A WHERE clause of all conditions that are not empty; nothing without any."""
    told = [c for c in conditions if c]
    return Clause("WHERE " + "\n    AND ".join(told)) if told else Clause("")
