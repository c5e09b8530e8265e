"""The filter of the Tasks screen: words and comparisons, turned into SQL conditions.

attn                  the class's name holds it
worker=3 request=7    numbers; also rank, step, dep, task (as iteration:index)
exec>20us queue>1ms   durations, with ns, us, ms or s
missing               tasks that were not recorded whole
"""

from __future__ import annotations

import re

from ..store.errors import Usage
from .literals import fill

_UNITS = {"": 1, "ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_NUMBERS = {"worker": "worker", "rank": "rank", "request": "request", "step": "step", "dep": "dep"}
_TIMES = {"exec": "exec_ns", "queue": "queue_ns", "start": "start", "complete": "complete", "ready": "ready"}
_TERM = re.compile(r"(?P<name>[a-z]+)(?P<op><=|>=|=|<|>)(?P<value>\S+)")
_TIME = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>ns|us|µs|ms|s|)")
_TASK = re.compile(r"(?P<iteration>\d+):(?P<index>\d+)")
_WHAT = "cannot filter"
_HELP = "e.g. attn worker=3 exec>20us missing"


def conditions(text: str) -> list[str]:
    """SQL conditions for the words of `text`, all of which must hold. Raises Usage for a term that is none."""
    return [_condition(word) for word in text.split()]


def _condition(word: str) -> str:
    if word == "missing":
        return "missing <> 0"
    match = _TERM.fullmatch(word)
    if match is None:
        if not re.fullmatch(r"[\w.\[\]/-]+", word):
            raise Usage(_WHAT, f"{word!r} is no name and no comparison", _HELP)
        return fill("contains(lower(class), {word})", word=word.lower())
    name, op, value = match["name"], match["op"], match["value"]
    if name == "class":
        if op != "=":
            raise Usage(_WHAT, f"a class is compared with =, not {op}", _HELP)
        return fill("class = {value}", value=value)
    if name == "task":
        place = _TASK.fullmatch(value)
        if place is None or op != "=":
            raise Usage(_WHAT, f"{word!r} is no task", "write task=iteration:index")
        return fill("task = {value}", value=int(place["iteration"]) << 32 | int(place["index"]))
    if name in _NUMBERS:
        if not value.isdecimal() or len(value) > 18:
            raise Usage(_WHAT, f"{value!r} is no number", _HELP)
        return f"{_NUMBERS[name]} {op} {int(value)}"
    if name in _TIMES:
        time = _TIME.fullmatch(value)
        if time is None or len(value) > 18:
            raise Usage(_WHAT, f"{value!r} is no duration", "write 20us, 1.5ms or 300ns")
        return f"{_TIMES[name]} {op} {round(float(time['number']) * _UNITS[time['unit']])}"
    known = ", ".join((*_NUMBERS, *_TIMES, "class", "task"))
    raise Usage(_WHAT, f"tasks have no {name!r}", f"they have {known}")
