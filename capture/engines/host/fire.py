"""Firing hooks: a row of the ABI as eight words in the worker's queue to its monitor, or a loss counted there."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import numpy as np

from ..graph import CONTROL
from . import state as c
from .compiled import compiled

# Hooks, as store.tables.HOOKS numbers them.
READY, ASSIGN, START, COMPLETE, WAIT, RESUME, RELEASE, SEND, RECEIVE, REQUEST, STEP, PRESSURE = range(1, 13)
RANGE, BEGINS, ENDS, RISES, FALLS = 0x80, 1, 2, 1, 2
PEER_NONE, PEER_ALL = 0xFFFF, 0xFFFE
LOW = 0xFFFFFFFF
BURST = 5
"""A queue is full for 2^BURST events on end when losses are asked for."""

# Whose random numbers: what is drawn must not depend on what else is.
FOR_JITTER, FOR_LOSS, FOR_OVER, FOR_SKEW, FOR_ROUTE = range(5)


@compiled
def drawn(p, purpose, a, b):
    """A number below 2^32 that depends on the seed, the purpose, a and b alone."""
    x = np.uint64(p[c.SEED] + purpose) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(a) * np.uint64(0xBF58476D1CE4E5B9)
    x += np.uint64(b) * np.uint64(0x94D049BB133111EB)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.int64((x ^ (x >> np.uint64(31))) >> np.uint64(32))


@compiled
def worker_at(w):
    return c.MISC_WORDS + w * c.WORKER_WORDS


@compiled
def task_at(p, task):
    return p[c.TASK_AT] + task * c.TASK_WORDS


@compiled
def dep_at(p, dep):
    return p[c.DEP_AT] + dep * c.DEP_WORDS


@compiled
def request_of(p, task):
    """The request generation or set that a task's rows name, with the step above it."""
    return p[p[c.SLOT_AT] + p[task_at(p, task) + c.T_SLOT] * c.SLOT_WORDS + c.S_REQUEST] | p[c.STEP] << 32


@compiled
def batch(p):
    """The request set of the whole batch, with the step above it."""
    return p[p[c.SLOT_AT] + p[c.SLOTS] * c.SLOT_WORDS + c.S_REQUEST] | p[c.STEP] << 32


@compiled
def fire(p, w, t, hook, task, aux, request_step, dep_comm, tile_class, peer, kind, flags):
    """Worker w fires a hook. task: its generation. The arguments from request_step on are halves of the row's words."""
    if (p[c.MASK] >> hook) & 1 == 0:
        return
    me = worker_at(w)
    seq = p[me + c.SEQ] + 1
    p[me + c.SEQ] = seq
    if p[c.LOSE] > 0 and drawn(p, FOR_LOSS, w, seq >> BURST) < p[c.LOSE]:
        p[me + c.LOST + hook] += 1
        return
    m = p[me + c.MONITOR]
    i = p[p[c.FILL_AT] + m]
    row = p[c.STAGE_AT] + (m * p[c.STAGE_STRIDE] + i) * 8
    p[row] = t
    p[row + 1] = seq
    p[row + 2] = task
    p[row + 3] = aux
    p[row + 4] = request_step
    p[row + 5] = dep_comm
    p[row + 6] = tile_class | w << 48
    p[row + 7] = p[me + c.PLACE] | peer << 16 | hook << 32 | kind << 40 | flags << 48
    p[p[c.FILL_AT] + m] = i + 1
    if i >= p[c.FULLEST]:
        p[c.FULLEST] = i + 1


@compiled
def fire_task(p, w, t, hook, task, aux, flags):
    """A row about a task that needs no dep: assign, start, complete, pressure."""
    what = p[task_at(p, task) + c.TILE_CLASS]
    fire(p, w, t, hook, p[c.STEP] << 32 | task, aux, request_of(p, task), 0, what, PEER_NONE, 0, flags)


@compiled
def fire_comm(p, w, t, hook, task, aux, dep):
    """A row about a communication task's round: send, receive."""
    this = task_at(p, task)
    comm = (p[c.STEP] * p[c.ROUNDS] + p[this + c.T_ROUND]) % LOW + 1
    peer = 1 - p[this + c.T_RANK] if p[c.RANKS] == 2 else PEER_ALL
    what, who = p[this + c.TILE_CLASS], request_of(p, task)
    kind = p[dep_at(p, dep) + c.D_KIND]
    fire(p, w, t, hook, p[c.STEP] << 32 | task, aux, who, dep | comm << 32, what, peer, kind, 0)


@compiled
def fire_dep(p, w, t, hook, task, aux, dep):
    """A row about a task and a dep: ready, release, wait, resume. task 0: of the worker itself; dep 0: for work."""
    what, who = 0, p[worker_at(w) + c.WAIT_STEP] << 32
    if task > 0:
        what, who = p[task_at(p, task) + c.TILE_CLASS], request_of(p, task)
        task |= p[c.STEP] << 32
    kind = p[dep_at(p, dep) + c.D_KIND] if dep > 0 else CONTROL
    fire(p, w, t, hook, task, aux, who, dep, what, PEER_NONE, kind, 0)
