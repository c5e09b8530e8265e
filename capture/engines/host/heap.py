"""Pending events of the simulation, in a binary heap by time, then by the order in which they were pushed.

An event is one word: kind << 48 | high << 24 | low.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from . import state as c
from .compiled import compiled


@compiled
def push(p, t, event):
    """Let `event` happen at time t."""
    heap, at, order = p[c.HEAP_AT], p[c.HEAP_SIZE], p[c.HEAP_ORDER]
    p[c.HEAP_SIZE] = at + 1
    p[c.HEAP_ORDER] = order + 1
    while at > 0:
        up = (at - 1) >> 1
        here, above = heap + 3 * at, heap + 3 * up
        if p[above] <= t:
            break
        p[here] = p[above]
        p[here + 1] = p[above + 1]
        p[here + 2] = p[above + 2]
        at = up
    here = heap + 3 * at
    p[here] = t
    p[here + 1] = order
    p[here + 2] = event


@compiled
def pop(p):
    """Remove the first event."""
    heap, n = p[c.HEAP_AT], p[c.HEAP_SIZE] - 1
    p[c.HEAP_SIZE] = n
    t, order, event = p[heap + 3 * n], p[heap + 3 * n + 1], p[heap + 3 * n + 2]
    at, down = 0, 1
    while down < n:
        below, other = heap + 3 * down, heap + 3 * down + 3
        if down + 1 < n and (p[other] < p[below] or (p[other] == p[below] and p[other + 1] < p[below + 1])):
            down += 1
            below = other
        if t < p[below] or (t == p[below] and order < p[below + 1]):
            break
        here = heap + 3 * at
        p[here] = p[below]
        p[here + 1] = p[below + 1]
        p[here + 2] = p[below + 2]
        at = down
        down = 2 * at + 1
    here = heap + 3 * at
    p[here] = t
    p[here + 1] = order
    p[here + 2] = event
