"""Which process is meant: a pid alone may be reused, a pid with its start time may not."""

from __future__ import annotations

from pathlib import Path


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
    if pid <= 0 or start_time(pid) != start:
        return False
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat[stat.rindex(")") + 2] not in "ZX"
