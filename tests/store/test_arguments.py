"""What an option may say, and what is said of what it may not."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megascope.store import arguments

TYPES = (arguments.rows, arguments.threads, arguments.seconds, arguments.percent)


@pytest.mark.parametrize(
    ("read", "good", "bad"),
    [
        (arguments.rows, {"0": 0, "12": 12}, ["-1", "x", "", "1.5", "9" * 30]),
        (arguments.threads, {"1": 1, "64": 64}, ["0", "-2", "x", "1000000"]),
        (arguments.seconds, {"0.5": 0.5, "3": 3.0}, ["0", "-1", "nan", "inf", "1e12", "x"]),
        (arguments.percent, {"0": 0.0, "2.5": 2.5, "2.5%": 2.5, "100": 100.0}, ["-1", "101", "nan", "x", "%"]),
    ],
)
def test_values(read: Callable[[str], Any], good: dict[str, Any], bad: list[str]) -> None:
    for text, value in good.items():
        assert read(text) == value
    for text in bad:
        with pytest.raises(argparse.ArgumentTypeError, match="is not a ") as refused:
            read(text)
        assert repr(text) in str(refused.value)


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused_in_words(text: str) -> None:
    for read in TYPES:
        try:
            assert read(text) >= 0
        except argparse.ArgumentTypeError as refused:
            assert f"{text!r} is not a " in str(refused)
