"""Which process is meant: a pid alone may be reused, a pid with its start time may not."""

from __future__ import annotations

from pathlib import Path

_COMMAND_MOST = 60
"""Characters of a command that are shown."""


def start_time(pid: int) -> int:
    """When the process began, in clock ticks since boot (field 22 of /proc/PID/stat); 0 if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    # The command's name stands in parentheses and may itself hold spaces and parentheses.
    return int(stat[stat.rindex(")") + 2 :].split()[19])


def alive(pid: int, start: int) -> bool:
    """Whether the very process that `pid` and `start` named still runs (a zombie does not)."""
    return _state(pid, start) not in ("", "Z", "X")


def stopped(pid: int, start: int) -> bool:
    """Whether that very process is there and stopped, by a signal or a debugger."""
    return _state(pid, start) in ("T", "t")


def _state(pid: int, start: int) -> str:
    """Its letter in /proc/PID/stat; empty if there is no such process."""
    if pid <= 0 or start_time(pid) != start:
        return ""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return stat[stat.rindex(")") + 2]


def named(pid: int) -> str:
    """For people: `process 123 (megascope tui)`, and without what it is where that cannot be read."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        raw = b""
    words = [w for w in raw.decode("utf-8", "replace").split("\0") if w]
    # The console script, and python -m megascope, which the interpreter has made a path of.
    ours = [i for i, w in enumerate(words) if Path(w).name == "megascope" or w.endswith("megascope/__main__.py")]
    if ours:
        at = ours[0]
        verb = next((w for w in words[at + 1 :] if not w.startswith("-")), "")
        words = ["megascope", *([verb] if verb else [])]
    told = "".join(c if c.isprintable() else " " for c in " ".join(words))
    told = f"{told[: _COMMAND_MOST - 1]}…" if len(told) > _COMMAND_MOST else told
    return f"process {pid} ({told})" if told.strip() else f"process {pid}"
