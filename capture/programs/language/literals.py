"""Numbers with units and strings with escapes, as they are written in a query."""

from __future__ import annotations

import re

from .errors import Position, Problem, did_you_mean

UNITS = {
    "": 1,
    "ns": 1,
    "us": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "Ki": 1 << 10,
    "Mi": 1 << 20,
    "Gi": 1 << 30,
}
"""Times in ns, the rest plain numbers."""
_DECIMAL = re.compile(r"([0-9](?:_?[0-9])*)(\.[0-9](?:_?[0-9])*)?([A-Za-z]*)")
_BASED = re.compile(r"0(?:[xX](?:_?[0-9a-fA-F])+|[bB](?:_?[01])+)")
_ESCAPES = {"n": "\n", "t": "\t", '"': '"', "\\": "\\"}
I64_MAX = (1 << 63) - 1


def number(text: str, at: Position) -> int:
    """'20us' → 20,000; '1.5us' → 1500; '0xff' → 255 (based literals have all 64 bits). Raises Problem."""
    if _BASED.fullmatch(text):
        value = int(text.replace("_", ""), 0)
        if value >> 64:
            raise Problem(at, f"{text} does not fit in 64 bits")
        return value - (1 << 64) if value >> 63 else value
    match = _DECIMAL.fullmatch(text)
    if not match:
        raise Problem(
            at, f"{text!r} is no number", f"numbers end in one of {', '.join(filter(None, UNITS))}, or nothing"
        )
    digits, fraction, unit = match.groups()
    if unit not in UNITS:
        todo = did_you_mean(unit, UNITS, f"units are {', '.join(filter(None, UNITS))}")
        raise Problem(at, f"{unit!r} is no unit", todo)
    part = (fraction or ".")[1:].replace("_", "")
    if len(digits) + len(part) >= 40:
        raise Problem(at, f"{text[:40]} does not fit in 63 bits")
    scale: int = 10 ** len(part)
    value, rest = divmod(int(digits.replace("_", "") + part) * UNITS[unit], scale)
    if rest:
        todo = "a fraction needs a unit in which it is whole in the end, as 1.5us is 1500 ns"
        raise Problem(at, f"{text[:40]} is no whole number" + (" of ns" if duration(text) else ""), todo)
    if value > I64_MAX:
        raise Problem(at, f"{text[:40]} does not fit in 63 bits")
    return value


def string(text: str, at: Position) -> str:
    """The text between the quotes. Raises Problem for an escape that is none."""
    out, i = [], 1
    while i < len(text) - 1:
        char = text[i]
        if char == "\\":
            i += 1
            if text[i] not in _ESCAPES:
                raise Problem(
                    Position(at.line, at.column + i - 1), f"\\{text[i]} is no escape", 'there are \\n \\t \\" \\\\'
                )
            char = _ESCAPES[text[i]]
        out.append(char)
        i += 1
    return "".join(out)


def duration(text: str) -> bool:
    """Does a number say a time unit?"""
    return bool(re.search(r"[0-9](ns|us|ms|s)$", text))
