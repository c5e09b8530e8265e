"""Completion of SQL from the schema: views where a table may stand, columns of the views that are named, and words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from ..analyze.catalogue import views

_WORDS = (
    "SELECT FROM WHERE GROUP BY ORDER HAVING LIMIT OFFSET JOIN LEFT USING AND OR NOT NULL IN BETWEEN LIKE ILIKE CASE "
    "WHEN THEN ELSE END DISTINCT FILTER OVER PARTITION QUALIFY WITH UNION ALL EXPLAIN DESCRIBE SUMMARIZE DESC ASC"
)
_FUNCTIONS = (
    "count sum min max avg median quantile_cont arg_max arg_min round coalesce greatest least lag lead row_number "
    "unnest range list histogram"
)
WORDS = tuple(_WORDS.split())
FUNCTIONS = tuple(f"{name}(" for name in _FUNCTIONS.split())

_WORD = re.compile(r"(?:(?P<alias>\w+)\.)?(?P<word>\w*)$")
_TABLE_NEXT = re.compile(r"\b(?:FROM|JOIN|DESCRIBE|SUMMARIZE)\s+\w*$|\bFROM\s+[\w\s,]+,\s*\w*$", re.IGNORECASE)
_NAMED = re.compile(r"\b(?:FROM|JOIN|,)\s*(?P<view>\w+)(?:\s+(?:AS\s+)?(?P<alias>\w+))?", re.IGNORECASE)


@dataclass(frozen=True)
class Completion:
    """`start`: where the word begins that each of `words` may take the place of, in characters of the text."""

    start: int
    words: tuple[str, ...]

    @property
    def common(self) -> str:
        """What all of them begin with."""
        first, last = min(self.words, default=""), max(self.words, default="")
        same = next(
            (i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last))
        )
        return first[:same]


@cache
def columns() -> dict[str, tuple[str, ...]]:
    """Columns of each view."""
    return {name: tuple(c.name for c in view.columns) for name, view in views().items()}


def complete(text: str, cursor: int) -> Completion:
    """What the word before `cursor` may become."""
    before = text[:cursor]
    match = _WORD.search(before)
    assert match is not None
    word, alias = match["word"], match["alias"]
    if alias is not None:
        of = _named(text).get(alias.lower())
        found = [c for c in columns().get(of or "", ()) if c.startswith(word.lower())]
    elif _TABLE_NEXT.search(before):
        found = [name for name in columns() if name.startswith(word.lower())]
    elif not word:
        found = []
    else:
        found = _anything(text, word)
    return Completion(cursor - len(word), tuple(dict.fromkeys(found)))


def _anything(text: str, word: str) -> list[str]:
    """Columns of the views that are named anywhere in the text, then functions, words and views."""
    low = word.lower()
    named = dict.fromkeys(_named(text).values())
    found = [c for view in named for c in columns()[view] if c.startswith(low)]
    if not named:
        found += [c for cs in columns().values() for c in cs if c.startswith(low)]
    found += [f for f in FUNCTIONS if f.startswith(low)]
    found += [w if word[0].isupper() else w.lower() for w in WORDS if w.lower().startswith(low)]
    return found + [name for name in columns() if name.startswith(low)]


def _named(text: str) -> dict[str, str]:
    """View by its name or alias in the text."""
    out = {}
    for match in _NAMED.finditer(text):
        view = match["view"].lower()
        if view in columns():
            out[view] = view
            if match["alias"]:
                out[match["alias"].lower()] = view
    return out
