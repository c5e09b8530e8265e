"""What an option of the command line may say. What else is given is refused in words, not by the name of a function."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
MOST_ROWS = (1 << 63) - 1
MOST_THREADS = 1 << 12
MOST_SECONDS = 1e9
"""32 years."""


def option(read: Callable[[str], T], what: str) -> Callable[[str], T]:
    """A type for argparse: `read`, whose ValueError says that the text is not `what`."""

    def parse(text: str) -> T:
        try:
            return read(text)
        except (ValueError, OverflowError):
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}") from None

    return parse


def _between(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise ValueError(text)
        return value

    return read


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < MOST_SECONDS:
        raise ValueError(text)
    return value


def _percent(text: str) -> float:
    value = float(text.removesuffix("%"))
    if not (math.isfinite(value) and 0 <= value <= 100):
        raise ValueError(text)
    return value


rows = option(_between(0, MOST_ROWS), "a number of rows: 0 or more")
threads = option(_between(1, MOST_THREADS), f"a number of threads: 1 to {MOST_THREADS}")
seconds = option(_seconds, "a number of seconds above 0")
percent = option(_percent, "a percentage from 0 to 100")
