"""What becomes ready, and who gets it: ready rows and the queues of the dynamic schedule."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from . import state as c
from .compiled import compiled
from .fire import (
    ASSIGN,
    FOR_OVER,
    PEER_NONE,
    PRESSURE,
    RANGE,
    READY,
    RISES,
    dep_at,
    drawn,
    fire,
    fire_task,
    task_at,
    worker_at,
)
from .heap import push

# Kinds of event, and what stands in their high and low bits.
DONE, RESUMED, ARRIVED, NOTIFIED, OFFERED, STEP_ENDED, STEP_BEGUN = range(7)
"""-, worker · -, worker · task, dep · worker, dep · task, worker · -, - · -, rank"""


@compiled
def rekey(p, w):
    """How loaded a worker is, with its id in the low bits: the least of these is whom `assign` chooses."""
    me = worker_at(w)
    busy = 0 if p[me + c.STATE] == c.IDLE else 1
    p[p[c.KEY_AT] + w] = (2 * p[me + c.QLEN] + busy) << 16 | w


@compiled
def choose(p, task, rank):
    """The worker that gets a task: the least loaded of its rank, by id among equals. -1 when every queue is full."""
    over = p[c.OVER_WORKER]
    if over >= 0:
        there = worker_at(over)
        room = p[there + c.RANK] == rank and p[there + c.QLEN] < p[c.CAPACITY]
        if room and drawn(p, FOR_OVER, task, p[c.STEP]) < p[c.OVER_SHARE]:
            return over
    first = p[c.KEY_AT] + rank * p[c.WORKERS]
    least = p[first]
    for i in range(first + 1, first + p[c.WORKERS]):
        least = min(least, p[i])
    if least >> 17 >= p[c.CAPACITY]:
        return -1
    return least & 0xFFFF


@compiled
def assign(p, t, w, task):
    """Worker w puts a task in a worker's queue, or keeps it for the rank until a queue has room."""
    rank = p[task_at(p, task) + c.T_RANK]
    target = choose(p, task, rank)
    if target < 0:
        kept = p[c.KEPT_AT] + 2 * rank
        at = (p[kept] + p[kept + 1]) % p[c.TASKS]
        p[p[c.OVERFLOW_AT] + rank * p[c.TASKS] + at] = task
        p[kept + 1] += 1
        return
    there, capacity = worker_at(target), p[c.CAPACITY]
    depth = p[there + c.QLEN] + 1
    p[p[c.QUEUE_AT] + target * capacity + (p[there + c.QHEAD] + depth - 1) % capacity] = task
    p[there + c.QLEN] = depth
    fire_task(p, w, t, ASSIGN, task, target << 48 | depth << 24 | capacity, 0)
    if depth == p[c.THRESHOLD]:
        fire_task(p, w, t, PRESSURE, task, depth << 32 | p[c.THRESHOLD], RISES)
    if p[there + c.STATE] == c.IDLE:
        p[there + c.STATE] = c.WOKEN
        push(p, t + p[c.WAKE], RESUMED << 48 | target)
    rekey(p, target)


@compiled
def ready(p, t, w, dep, rank, by):
    """Rows that say that the waiters of a dep on a rank are ready: one for each run of tasks of one class."""
    this, waiter = dep_at(p, dep), p[c.WAITER_AT]
    i, end, batch = p[this + c.D_WAITER], p[this + c.D_WAITED], p[c.SLOTS]
    while i < end:
        first = p[waiter + i]
        at = task_at(p, first)
        n, arrival = 1, p[at + c.T_BLOCKING]
        # A receive whose data has not arrived is not ready yet: its worker will say so when it sees the arrival.
        if p[at + c.T_RANK] == rank and (arrival == 0 or p[dep_at(p, arrival) + c.D_SATISFIED] == 1):
            slot, what = p[at + c.T_SLOT], p[at + c.TILE_CLASS]
            p[at + c.T_READY] = t
            while i + n < end and p[waiter + i + n] == first + n:
                at = task_at(p, first + n)
                if p[at + c.TILE_CLASS] >> 32 != what >> 32:
                    break
                p[at + c.T_READY] = t
                if p[at + c.T_SLOT] != slot:
                    slot = batch
                n += 1
            flags = 0
            if n > 1:
                flags = RANGE
                what = what >> 32 << 32 | n
            who = p[p[c.SLOT_AT] + slot * c.SLOT_WORDS + c.S_REQUEST] | p[c.STEP] << 32
            task = p[c.STEP] << 32 | first
            fire(p, w, t, READY, task, by, who, dep, what, PEER_NONE, p[this + c.D_KIND], flags)
        i += n


@compiled
def offer(p, t, w, dep, rank):
    """Assign the waiters of a dep on a rank, but for those that are starved."""
    this = dep_at(p, dep)
    for i in range(p[this + c.D_WAITER], p[this + c.D_WAITED]):
        task = p[p[c.WAITER_AT] + i]
        at = task_at(p, task)
        if p[at + c.T_RANK] == rank:
            if p[at + c.T_STARVE] > 0:
                push(p, t + p[at + c.T_STARVE], OFFERED << 48 | task << 24 | w)
            else:
                assign(p, t, w, task)
