"""Why an object cannot be a program; the loader says of which object."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

DAMAGED = "compile it again"


class Unfit(Exception):
    """why: what is wrong, without the object's name; todo: what its author can do."""

    def __init__(self, why: str, todo: str = DAMAGED) -> None:
        super().__init__(why)
        self.why, self.todo = why, todo


def nearest(name: str, known: Iterable[str], otherwise: str) -> str:
    """What to do about an unknown name: the known one that it looks like, else `otherwise`."""
    close = difflib.get_close_matches(name, list(known), 1)
    return f"did you mean {close[0]}?" if close else otherwise


def printable(raw: bytes) -> str:
    """Text of an object, fit for a terminal: what is no printable character shows as U+FFFD, white space as blanks."""
    text = raw.decode("utf-8", "replace")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in text)
