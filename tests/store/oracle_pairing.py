"""What pairing must give, the slow way: plain Python over all events at once.

Written from the declarations of `TASKS` and `WAITS` and from the rule that cuts an identity's rows into records
(pairing_match), and from nothing else of the implementation.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from megascope.store.tables import FLAG_RANGE, REQUEST_SET_BIT, REQUEST_UNKNOWN, SINCE_MAX

READY, ASSIGN, START, COMPLETE, WAIT, RESUME = range(1, 7)
GRACE = 10_000
ALL = frozenset(range(1, 14))
LATE = 1 << 100

Row = dict[str, Any]


def carried_time(row: Row) -> int | None:
    """The time a row carries, unless it is null or saturated."""
    since = row["since_ns"]
    return None if since is None or abs(since) >= SINCE_MAX else row["t"] - since


def each_task(rows: list[Row]) -> list[Row]:
    """Ready, assign, start and complete rows, one for each task they stand for."""
    out = []
    for row in rows:
        if row["hook"] not in (READY, ASSIGN, START, COMPLETE):
            continue
        if row["flags"] & FLAG_RANGE:
            for i in range(max(1, row["tile"])):
                out.append({**row, "task": row["task"] + i, "tile": None})
        else:
            out.append(row)
    return out


def records(rows: list[Row]) -> list[dict[int, Row]]:
    """One identity's rows as records: hook to row."""
    unique = {(r["t"], r["hook"], r["worker"], r["seq"]): r for r in reversed(rows)}
    out: list[dict[int, Row]] = []
    for _, row in sorted(unique.items()):
        last = out[-1] if out else None
        done = last[COMPLETE]["t"] if last and COMPLETE in last else None
        if last is None or row["hook"] in last or (done is not None and row["t"] > done + GRACE):
            out.append({})
        out[-1][row["hook"]] = row
    return out


def one_task(record: dict[int, Row], hooks: frozenset[int]) -> Row:
    ready, assign, start, complete = (record.get(h) for h in (READY, ASSIGN, START, COMPLETE))
    t_ready = ready["t"] if ready else carried_time(start) if start else None
    t_start = start["t"] if start else carried_time(complete) if complete else None
    t_assign = assign["t"] if assign else None
    t_complete = complete["t"] if complete else None
    latest = complete or start or assign or ready
    ran = complete or start
    assert latest is not None
    target = assign["aux"] >> 48 & 0xFFFF if assign else None
    worker = ran["worker"] if ran else None
    flags = 0
    if latest["request"] & REQUEST_SET_BIT and latest["request"] != REQUEST_UNKNOWN:
        flags |= 1
    if t_assign is not None and t_ready is not None and t_assign < t_ready:
        flags |= 2
    if target is not None and worker is not None and target != worker:
        flags |= 4
    tiles = [r["tile"] for r in (complete, start, assign, ready) if r and r["tile"] is not None]
    missing = [h for h in (READY, ASSIGN, START, COMPLETE) if h in hooks and h not in record]
    return {
        "rank": latest["rank"],
        "task": latest["task"],
        "task_class": latest["task_class"],
        "ready": t_ready,
        "assign": t_assign,
        "start": t_start,
        "complete": t_complete,
        "exec_ns": None if t_start is None or t_complete is None else t_complete - t_start,
        "queue_ns": None if t_start is None or t_ready is None else t_start - t_ready,
        "worker": worker,
        "ready_worker": ready["worker"] if ready else None,
        "assigned_worker": target,
        "request": latest["request"],
        "step": latest["step"],
        "tile": tiles[0] if tiles else None,
        "released_by": ready["aux"] if ready else None,
        "dep": ready["dep"] if ready else None,
        "dep_class": ready["dep_class"] if ready else None,
        "missing": sum(1 << (h - 1) for h in missing),
        "flags": flags,
    }


def tasks(rows: list[Row], hooks: frozenset[int] = ALL) -> list[Row]:
    """Rows of `TASKS` in their order: start (nulls last), iteration, rank, index; of one identity by time."""
    of: dict[tuple[int, int], list[Row]] = defaultdict(list)
    for row in each_task(rows):
        of[row["rank"], row["task"]].append(row)
    out = [one_task(record, hooks) for identity in sorted(of) for record in records(of[identity])]
    return sorted(out, key=task_order)


def task_order(row: Row) -> tuple[int, ...]:
    start = LATE if row["start"] is None else row["start"]
    return start, row["task"] >> 32, row["rank"], row["task"] & 0xFFFF_FFFF


def waits(rows: list[Row], hooks: frozenset[int] = ALL) -> list[Row]:
    """Rows of `WAITS` in their order: begin (nulls last), rank, worker, seq."""
    last_t: dict[int, int] = {}
    of: dict[tuple[int, int], dict[tuple[int, int, int], Row]] = defaultdict(dict)
    for row in rows:
        last_t[row["worker"]] = max(last_t.get(row["worker"], -1), row["t"])
        if row["hook"] in (WAIT, RESUME):
            of[row["rank"], row["worker"]].setdefault((row["seq"], row["t"], row["hook"]), row)
    out: list[tuple[int, Row]] = []
    for at in sorted(of):
        mine = sorted(of[at].values(), key=lambda r: r["seq"])
        i = 0
        while i < len(mine):
            row, after = mine[i], mine[i + 1] if i + 1 < len(mine) else None
            if row["hook"] == RESUME:
                out.append((row["seq"], one_wait(None, row, hooks, False)))
            elif after is not None and after["hook"] == RESUME and tells_of(after, row):
                out.append((row["seq"], one_wait(row, after, hooks, False)))
                i += 1
            else:
                silent = after is None and last_t[row["worker"]] <= row["t"]
                out.append((row["seq"], one_wait(row, None, hooks, silent)))
            i += 1
    key = [(LATE if r["t_begin"] is None else r["t_begin"], r["rank"], r["worker"], seq) for seq, r in out]
    return [out[i][1] for i in sorted(range(len(out)), key=lambda i: key[i])]


def tells_of(resume: Row, wait: Row) -> bool:
    begin = carried_time(resume)
    if begin is None:
        return bool((resume["task"], resume["dep"]) == (wait["task"], wait["dep"]))
    return bool(begin == wait["t"])


def one_wait(wait: Row | None, resume: Row | None, hooks: frozenset[int], silent: bool) -> Row:
    either = wait or resume
    assert either is not None
    begin = wait["t"] if wait else carried_time(resume) if resume else None
    end = resume["t"] if resume else None
    out = {n: either[n] for n in ("rank", "worker", "task", "task_class", "dep", "dep_class", "request", "step")}
    return out | {
        "t_begin": begin,
        "t_end": end,
        "ns": None if begin is None or end is None else end - begin,
        "seen": wait["aux"] >> 32 & 0xFFFF_FFFF if wait else None,
        "wanted": wait["aux"] & 0xFFFF_FFFF if wait else None,
        "missing": (1 if wait is None and WAIT in hooks else 0) | (2 if resume is None and RESUME in hooks else 0),
        "open": silent,
    }
