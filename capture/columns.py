"""Rows of text in columns, for verbs that list."""

from __future__ import annotations

from collections.abc import Sequence


def print_columns(rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows in columns as wide as they need."""
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    for r in rows:
        print("  ".join(cell.ljust(w) for cell, w in zip(r, widths, strict=True)).rstrip())
