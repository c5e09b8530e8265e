"""Lengths of time as people write them on a command line."""

from __future__ import annotations

import re

from ..store import arguments

_UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9, "d": 86_400 * 10**9}
_FORM = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ns|us|ms|s|m|h|d)")
MOST_NS = 1 << 60
"""36 years."""


def duration(text: str) -> int:
    """'10m' → 600,000,000,000 ns; units ns, us, ms, s, m, h, d. Raises ValueError for anything else."""
    match = _FORM.fullmatch(text.strip())
    value = round(float(match[1]) * _UNITS[match[2]]) if match and len(text) < 40 else -1
    if not 0 <= value <= MOST_NS:
        raise ValueError(text)
    return value


DURATION = arguments.option(duration, "a length of time such as 500ms, 30s, 10m or 2h")
"""The type of an option that takes one."""
