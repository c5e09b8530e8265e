"""What a rolling recording keeps: the last stretch of device time, and stretches that were pinned.

Events are kept and retired by *step*: a part of events and the parts of tasks, waits and tiles that were derived with
it, all of one number. A step is retired when all of it is older than the window and none of it touches a pin; so every
row that is younger than `horizon` is kept, and every row in a pin, and some around them. Nothing here touches a disk.

The manifest says under `retention` what is kept and what has gone, in the same step in which it forgets the parts: what
is retired is counted once, whenever a recorder dies. A reader makes rows of `loss` from it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from . import derived
from .loss import LOSS_BY_NAME
from .tables import EVENTS, LOSS

KEY = "retention"
"""Of the manifest."""
PINS_MOST = 4096
"""Separate pinned stretches of one recording; each costs the manifest a line."""


class Pins:
    """Stretches of device time [begin, end] in ns, both inclusive, with something between them: what touches is one."""

    def __init__(self, some: Iterable[Sequence[int]] = ()) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []
        for begin, end in some:
            self.add(begin, end)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self._begins, self._ends, strict=True))

    def __len__(self) -> int:
        return len(self._begins)

    def add(self, begin: int, end: int) -> None:
        """Pin [begin, end] too."""
        first, after = bisect_left(self._ends, begin - 1), bisect_right(self._begins, end + 1)
        if first < after:
            begin, end = min(begin, self._begins[first]), max(end, self._ends[after - 1])
        self._begins[first:after], self._ends[first:after] = [begin], [end]

    def touches(self, begin: int, end: int) -> bool:
        """Whether any time of [begin, end] is pinned."""
        at = bisect_left(self._ends, begin)
        return at < len(self._begins) and self._begins[at] <= end

    def cut(self, at: int) -> None:
        """Let go of what is pinned after `at`."""
        after = bisect_right(self._begins, at)
        del self._begins[after:], self._ends[after:]
        if after:
            self._ends[-1] = min(self._ends[-1], at)


@dataclass(frozen=True)
class Step:
    """A part of events and what was derived with it. low, high: device times of all of it, ns; rows: of events."""

    number: int
    low: int
    high: int
    rows: int
    bytes: int


@dataclass(frozen=True)
class Plan:
    """What is to go. early: numbers of steps younger than the window. horizon: all rows from here on are kept."""

    retire: tuple[int, ...]
    early: frozenset[int]
    horizon: int
    pinned_bytes: int


def steps_of(content: dict[str, Any], *, underived: bool = False) -> list[Step]:
    """The steps that may go, in order of their numbers: those that derivation is done with, or all (`underived`)."""
    upto: float = (content.get(derived.KEY) or derived.fresh())["upto"]
    upto = math.inf if underived or derived.is_finished(content) else upto
    parts: dict[int, list[dict[str, Any]]] = {}
    rows: dict[int, int] = {}
    for name in (EVENTS.name, *derived.NAMES):
        for entry in derived.parts_of(content, name):
            number = derived.number_of(entry["file"])
            if number <= upto and "-lost-" not in entry["file"]:
                parts.setdefault(number, []).append(entry)
                rows[number] = rows.get(number, 0) + (entry["rows"] if name == EVENTS.name else 0)
    out = []
    for number, entries in sorted(parts.items()):
        timed = [e for e in entries if e["t_min"] is not None and e["t_max"] is not None]
        if timed:
            low, high = min(e["t_min"] for e in timed), max(e["t_max"] for e in timed)
            out.append(Step(number, low, high, rows[number], sum(e["bytes"] for e in entries)))
    return out


def underived(content: dict[str, Any], steps: Sequence[Step]) -> list[Step]:
    """The parts of events that wait for derivation, given the steps that may go: in order of their numbers."""
    known = {step.number for step in steps}
    waiting = []
    for part in content["streams"][EVENTS.name]["parts"]:
        number = derived.number_of(part["file"])
        if number not in known and part["t_min"] is not None and part["t_max"] is not None:
            waiting.append(Step(number, part["t_min"], part["t_max"], part["rows"], part["bytes"]))
    return waiting


def plan(
    steps: Iterable[Step], pins: Pins, window: int, horizon: int, excess: int, coming: Sequence[Step] = ()
) -> Plan:
    """What goes: steps older than `horizon`, and of the others the oldest until `excess` bytes are free.

    window: where it begins by `keep_ns`; what is younger goes early. The horizon may be beyond it already.
    coming: younger steps that are not sealed or not derived from yet. They move the horizon when nothing older is
    left, and are let go of by sealing and deriving, as they come to them, and not by this plan.
    """
    retire: list[Step] = []
    left: list[Step] = []
    pinned, horizon = 0, max(window, horizon)
    for step in steps:
        if pins.touches(step.low, step.high):
            pinned += step.bytes
        elif step.high < horizon:
            retire.append(step)
            excess -= step.bytes
        else:
            left.append(step)
    ahead, begun = [step for step in coming if not pins.touches(step.low, step.high)], horizon
    excess -= sum(step.bytes for step in ahead if step.high < begun)
    for step in left:
        if excess <= 0:
            break
        retire.append(step)
        excess -= step.bytes
        horizon = max(horizon, step.high + 1)
    for step in ahead:
        if excess <= 0:
            break
        if step.high >= begun:
            excess -= step.bytes
            horizon = max(horizon, step.high + 1)
    early = {step.number for step in retire if step.high >= window}
    return Plan(tuple(step.number for step in retire), frozenset(early), horizon, pinned)


def fresh(keep_ns: int) -> dict[str, Any]:
    """The manifest's entry of a recording that keeps the last `keep_ns`."""
    return {"keep_ns": keep_ns, "horizon": None, "pins": [], "retired": []}


def forget_unsealed(
    content: dict[str, Any], number: int, low: int, high: int, rows: int, window: int, horizon: int
) -> None:
    """Count rows as retired that were never sealed; `number` is what their part would have had."""
    _count(content[KEY]["retired"], number, rows, rows if high >= window else 0, low, high)
    content[KEY]["horizon"] = horizon


def forget(content: dict[str, Any], plan: Plan, pins: Iterable[Sequence[int]]) -> list[str]:
    """Take what a plan retires out of a manifest's content and count it there; the files that are to go then."""
    going = set(plan.retire)
    entry, doomed = content[KEY], []
    times: dict[int, tuple[int, int, int]] = {}
    derivation = content.get(derived.KEY) or derived.fresh()
    for name in (EVENTS.name, *derived.NAMES):
        owner = content["streams"][name] if name == EVENTS.name else derivation[name]
        stay = []
        for part in owner["parts"]:
            number = derived.number_of(part["file"])
            if number not in going or "-lost-" in part["file"]:
                stay.append(part)
                continue
            doomed.append(f"{name}/{part['file']}")
            if name == EVENTS.name:
                times[number] = part["t_min"], part["t_max"], part["rows"]
        owner["parts"] = stay
    for number, (low, high, rows) in sorted(times.items()):
        _count(entry["retired"], number, rows, rows if number in plan.early else 0, low, high)
    entry["horizon"], entry["pins"] = plan.horizon, [list(pin) for pin in pins]
    return doomed


def _count(runs: list[dict[str, Any]], number: int, rows: int, early: int, low: int, high: int) -> None:
    """Add a retired part of events to the runs of consecutive numbers."""
    at = bisect_left([run["first"] for run in runs], number)
    runs.insert(at, {"first": number, "last": number, "rows": rows, "early": early, "t_begin": low, "t_end": high})
    for left in (at, at - 1):
        if left >= 0 and left + 1 < len(runs) and runs[left]["last"] + 1 == runs[left + 1]["first"]:
            a, b = runs[left], runs.pop(left + 1)
            a["last"], a["rows"], a["early"] = b["last"], a["rows"] + b["rows"], a["early"] + b["early"]
            a["t_begin"], a["t_end"] = min(a["t_begin"], b["t_begin"]), max(a["t_end"], b["t_end"])


def last_retired(content: Mapping[str, Any]) -> int:
    """The highest number of a part of events that was retired; 0 for none."""
    runs = (content.get(KEY) or {}).get("retired", [])
    return int(runs[-1]["last"]) if runs else 0


def is_retired(content: Mapping[str, Any], number: int) -> bool:
    """Whether the part of events of that number was retired."""
    runs = (content.get(KEY) or {}).get("retired", [])
    return any(run["first"] <= number <= run["last"] for run in runs)


def retired_rows(content: Mapping[str, Any], what: str = "rows") -> int:
    """Rows of events that were retired. what: `early` for those alone that went before their time."""
    return sum(run[what] for run in (content.get(KEY) or {}).get("retired", []))


def losses(content: Mapping[str, Any]) -> pa.Table:
    """Rows of `loss` for what was retired: one for each run of it, and kind."""
    rows = []
    for run in (content.get(KEY) or {}).get("retired", []):
        for kind, count in (("retired", run["rows"] - run["early"]), ("retired_early", run["early"])):
            if count:
                known = {"kind": kind, "severity": LOSS_BY_NAME[kind].severity, "count": count}
                known |= {"t_begin": run["t_begin"], "t_end": run["t_end"]}
                detail = f"parts {run['first']} to {run['last']} of events, and what was derived from them"
                rows.append(dict.fromkeys(LOSS.names) | known | {"detail": detail})
    return pa.Table.from_pylist(rows, schema=LOSS.schema)


def note(content: Mapping[str, Any]) -> str | None:
    """What a reader must be told of a rolling recording; None where nothing was retired."""
    rows = retired_rows(content)
    if not rows:
        return None
    entry = content[KEY]
    pins = len(entry["pins"])
    more = f" and {pins} pinned stretch{'es' if pins > 1 else ''}" if pins else ""
    return (
        f"a rolling recording: {rows:,} rows of events were retired; what is kept, the last "
        f"{entry['keep_ns'] / 1e9:g} s{more}, stands for itself and not for the whole run; see loss and marks"
    )
