"""The discrete-event simulation, compiled by numba: workers execute the graph and fire hooks in virtual time.

Scheduling takes no virtual time of its own: what a worker does between two tasks (complete, release, ready, assign,
start) carries one t, so that counters, queues and rows are in one order. Every row that a worker fires therefore has
a t not below the one before, and a row is fired in the epoch of its t.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from ..graph import COMMUNICATION, SHORT_NS
from . import fire as f
from . import state as c
from .compiled import compiled, entry, words
from .dispatch import (
    ARRIVED,
    DONE,
    NOTIFIED,
    OFFERED,
    RESUMED,
    STEP_BEGUN,
    STEP_ENDED,
    assign,
    offer,
    ready,
    rekey,
)
from .fire import dep_at, drawn, fire, fire_comm, fire_dep, fire_task, task_at, worker_at
from .heap import pop, push

NEED_STEP, STAGE_FULL, EPOCH, PACED, FINISHED, STUCK = range(1, 7)
"""Why `run` returned."""


@compiled
def duration(p, task):
    """ns that a task takes: what it costs, its share of the work at hand, jitter, and the class's factor."""
    this, slot, scale = task_at(p, task), p[c.SLOT_AT], p[task_at(p, task) + c.T_SCALE]
    units = 0
    if scale == 1:
        units = p[slot + p[c.SLOTS] * c.SLOT_WORDS + c.S_TOKENS]
    elif scale == 2:
        units = p[slot + p[this + c.T_SLOT] * c.SLOT_WORDS + c.S_TOKENS]
    elif scale == 3:
        units = p[slot + p[this + c.T_SLOT] * c.SLOT_WORDS + c.S_ATTENDED]
    elif scale == 4:
        units = p[p[c.ROUTED_AT] + p[this + c.T_ROUTE]]
    ns = p[this + c.T_COST] + (p[this + c.T_UNIT] * units >> 10)
    if scale >= 2 and units == 0:
        ns = SHORT_NS
    swing = (p[c.JITTER] * (2 * drawn(p, f.FOR_JITTER, task, p[c.STEP]) - c.SURE)) >> 32
    ns = ns * (c.ONE + swing) >> 16
    return max(1, ns * p[p[c.FACTOR_AT] + (p[this + c.TILE_CLASS] >> 32)] >> 16)


@compiled
def wait(p, t, w, task, dep, state):
    """Worker w begins to wait: the now record and the row. task 0: for work; dep 0: nothing that has a counter."""
    me, this = worker_at(w), dep_at(p, dep)
    seen, wanted = p[this + c.D_COUNTER], p[this + c.D_WANTED]
    if dep == 0:
        seen, wanted = 0, 1
    elif seen == wanted:
        seen = wanted - 1  # a postponed release has been counted, but nobody who waits can see it
    p[me + c.STATE] = state
    p[me + c.WAIT_T] = t
    p[me + c.WAIT_TASK] = p[c.STEP] << 32 | task if task > 0 else 0
    p[me + c.WAIT_DEP] = dep
    p[me + c.WAIT_SEEN] = seen << 32 | wanted
    p[me + c.WAIT_STEP] = p[c.STEP]
    if state == c.FOR_DEP or state == c.FOR_ARRIVAL:
        p[me + c.NEXT] = p[this + c.D_FIRST]
        p[this + c.D_FIRST] = w
    waiting_row(p, t, w, f.WAIT, seen << 32 | wanted)


@compiled
def waiting_row(p, t, w, hook, aux):
    """The row that begins or ends a worker's wait."""
    me = worker_at(w)
    task, dep = p[me + c.WAIT_TASK] & f.LOW, p[me + c.WAIT_DEP]
    if p[dep_at(p, dep) + c.D_KIND] == COMMUNICATION:
        fire_comm(p, w, t, hook, task, aux, dep)
    else:
        fire_dep(p, w, t, hook, task, aux, dep)


@compiled
def resume(p, t, w):
    """The wait is over: the row, and the now record cleared."""
    me = worker_at(w)
    waiting_row(p, t, w, f.RESUME, p[me + c.WAIT_T])
    p[me + c.WAIT_DEP] = -1


@compiled
def begin(p, t, w, task, since):
    """Start a task whose dep is satisfied; a receive first waits for what its peers send. since: t of that wait."""
    me, this = worker_at(w), task_at(p, task)
    p[me + c.CURRENT] = task
    arrival = p[this + c.T_BLOCKING]
    if arrival > 0:
        if p[dep_at(p, arrival) + c.D_SATISFIED] == 0:
            wait(p, t, w, task, arrival, c.FOR_ARRIVAL)
            return
        if p[this + c.T_READY] == 0:
            p[this + c.T_READY] = t
            fire_dep(p, w, t, f.READY, task, p[dep_at(p, arrival) + c.D_RELEASER], arrival)
        fire_comm(p, w, t, f.RECEIVE, task, since, arrival)
    fire_task(p, w, t, f.START, task, p[this + c.T_READY], 0)
    p[me + c.STATE] = c.RUNNING
    p[me + c.START_T] = t
    push(p, t + duration(p, task), DONE << 48 | w)


@compiled
def take(p, t, w, task):
    """Begin a task of a static list, unless it is starved."""
    me, held = worker_at(w), p[task_at(p, task) + c.T_STARVE]
    if held > 0:
        p[me + c.CURRENT] = task
        p[me + c.STATE] = c.HELD
        push(p, t + held, RESUMED << 48 | w)
    else:
        begin(p, t, w, task, t)


@compiled
def next_task(p, t, w):
    """What a worker does when it is free: the next of its list or queue, or wait."""
    me = worker_at(w)
    if p[c.DYNAMIC]:
        depth = p[me + c.QLEN] - 1
        if depth < 0:
            wait(p, t, w, 0, 0, c.IDLE)
            rekey(p, w)
            return
        task = p[p[c.QUEUE_AT] + w * p[c.CAPACITY] + p[me + c.QHEAD]]
        p[me + c.QHEAD] = (p[me + c.QHEAD] + 1) % p[c.CAPACITY]
        p[me + c.QLEN] = depth
        p[me + c.STATE] = c.RUNNING
        rekey(p, w)
        if depth == p[c.THRESHOLD] - 1:
            fire_task(p, w, t, f.PRESSURE, task, depth << 32 | p[c.THRESHOLD], f.FALLS)
        rank = p[me + c.RANK]
        kept = p[c.KEPT_AT] + 2 * rank
        if p[kept + 1] > 0:
            oldest = p[p[c.OVERFLOW_AT] + rank * p[c.TASKS] + p[kept]]
            p[kept] = (p[kept] + 1) % p[c.TASKS]
            p[kept + 1] -= 1
            assign(p, t, w, oldest)
        begin(p, t, w, task, t)
        return
    at = p[me + c.LIST] + p[me + c.POSITION]
    if at == p[me + c.LISTED]:
        wait(p, t, w, 0, p[c.END], c.FOR_STEP)
        return
    p[me + c.POSITION] += 1
    task = p[p[c.LISTED_AT] + at]
    p[me + c.CURRENT] = task
    dep = p[task_at(p, task) + c.T_DEP]
    if dep > 0 and p[dep_at(p, dep) + c.D_SATISFIED] == 0:
        wait(p, t, w, task, dep, c.FOR_DEP)
    else:
        take(p, t, w, task)


@compiled
def satisfied(p, t, w, dep, by):
    """A dep takes effect: its waiters are ready and assigned by w, the workers that wait for it wake up."""
    this = dep_at(p, dep)
    p[this + c.D_SATISFIED] = 1
    if dep == p[c.END]:
        push(p, t + p[c.WAKE], STEP_ENDED << 48)
    if p[this + c.D_KIND] != COMMUNICATION:
        rank = p[worker_at(w) + c.RANK]
        ready(p, t, w, dep, rank, by)
        if p[c.DYNAMIC]:
            offer(p, t, w, dep, rank)
    waiting = p[this + c.D_FIRST]
    p[this + c.D_FIRST] = -1
    while waiting >= 0:
        push(p, t + p[c.WAKE], RESUMED << 48 | waiting)
        waiting = p[worker_at(waiting) + c.NEXT]


@compiled
def count_up(p, t, w, dep, by):
    """A dep's counter goes up by one, for the task generation `by`. By worker w's release, or from the link: -1."""
    this = dep_at(p, dep)
    counter, wanted = p[this + c.D_COUNTER] + 1, p[this + c.D_WANTED]
    p[this + c.D_COUNTER] = counter
    if w >= 0:
        fire_dep(p, w, t, f.RELEASE, by & f.LOW, counter << 32 | wanted, dep)
    if counter == wanted:
        p[this + c.D_RELEASER] = by
        if p[this + c.D_POSTPONE] > 0:
            push(p, t + p[this + c.D_POSTPONE], NOTIFIED << 48 | max(w, 0) << 24 | dep)
        else:
            satisfied(p, t, max(w, 0), dep, by)


@compiled
def complete(p, t, w):
    """A task is done: what it sends is on its way to every peer, what it releases is counted."""
    me = worker_at(w)
    task = p[me + c.CURRENT]
    this = task_at(p, task)
    lands = t
    if p[this + c.T_KIND] == c.SEND:
        fire_comm(p, w, t, f.SEND, task, p[this + c.T_BYTES], 0)
        lands += p[c.LINK] + p[this + c.T_BYTES] // p[c.LINK_BYTES] + p[p[c.LATE_AT] + p[this + c.T_ROUND]]
    fire_task(p, w, t, f.COMPLETE, task, p[me + c.START_T], 0)
    for i in range(p[this + c.T_RELEASE], p[this + c.T_RELEASED]):
        dep = p[p[c.RELEASE_AT] + i]
        if p[dep_at(p, dep) + c.D_KIND] == COMMUNICATION:
            push(p, lands, ARRIVED << 48 | task << 24 | dep)
        else:
            count_up(p, t, w, dep, p[c.STEP] << 32 | task)


@compiled
def wake(p, t, w):
    """A worker's wait, or the time for which a task was held, is over."""
    me = worker_at(w)
    was, task, since = p[me + c.STATE], p[me + c.CURRENT], p[me + c.WAIT_T]
    if was == c.HELD:
        begin(p, t, w, task, t)
        return
    resume(p, t, w)
    if was == c.FOR_DEP:
        take(p, t, w, task)
    elif was == c.FOR_ARRIVAL:
        begin(p, t, w, task, since)
    else:
        next_task(p, t, w)


@compiled
def step_end(p, t):
    """Rank 0's first worker ends the iteration. Every worker waits by now."""
    resume(p, t, 0)
    p[worker_at(0) + c.STATE] = c.IN_CONTROL
    rekey(p, 0)
    fire(p, 0, t, f.STEP, 0, p[c.STEP_T], f.batch(p), 0, 0, f.PEER_NONE, 0, f.ENDS)
    p[c.STEPS_LEFT] -= 1
    if p[c.STEPS_LEFT] > 0:
        begin_all(p, t)


@compiled
def begin_all(p, t):
    """The next iteration begins after the host's gap; on other ranks when word has come over the link."""
    for rank in range(p[c.RANKS]):
        push(p, t + p[c.GAP] + (p[c.LINK] if rank > 0 else 0), STEP_BEGUN << 48 | rank)


@compiled
def step_begin(p, t, rank):
    """A rank's first worker begins the iteration: its first tasks are ready."""
    w = rank * p[c.WORKERS]
    me = worker_at(w)
    if p[me + c.WAIT_DEP] >= 0:
        resume(p, t, w)
    p[me + c.STATE] = c.IN_CONTROL
    rekey(p, w)
    if rank == 0:
        reset(p)
        p[c.STEP_T] = t
        fire(p, w, t, f.STEP, 0, t, f.batch(p), 0, 0, f.PEER_NONE, 0, f.BEGINS)
        for i in range(p[c.ROWS_AT], p[c.ROWS_AT] + 3 * p[c.ROWS], 3):
            who = p[i + 1] | p[c.STEP] << 32
            fire(p, w, t, f.REQUEST, 0, p[i] << 32 | p[i + 2], who, 0, 0, f.PEER_NONE, 0, 0)
    ready(p, t, w, 0, rank, 0)
    if p[c.DYNAMIC]:
        offer(p, t, w, 0, rank)
    else:
        p[me + c.POSITION] = 0
        for i in range(w + 1, w + p[c.WORKERS]):
            p[worker_at(i) + c.POSITION] = 0
            push(p, t + p[c.WAKE], RESUMED << 48 | i)
    next_task(p, t, w)


@compiled
def reset(p):
    """Counters from 0, experts chosen."""
    p[c.LOADED] = 0
    for dep in range(p[c.DEPS]):
        this = dep_at(p, dep)
        p[this + c.D_COUNTER] = 0
        p[this + c.D_SATISFIED] = 0
        p[this + c.D_FIRST] = -1
    for task in range(p[c.TASKS]):
        p[task_at(p, task) + c.T_READY] = 0
    routed = p[c.ROUTED_AT]
    for i in range(routed, routed + p[c.LAYERS] * p[c.EXPERTS]):
        p[i] = 0
    if p[c.EXPERTS] > 0:
        for layer in range(p[c.LAYERS]):
            for slot in range(p[c.SLOTS]):
                route(p, layer, slot, p[p[c.SLOT_AT] + slot * c.SLOT_WORDS + c.S_TOKENS])


@compiled
def route(p, layer, slot, tokens):
    """A slot's tokens go to top_k different experts, drawn for this iteration, layer and slot."""
    experts, picked, where = p[c.EXPERTS], p[c.PICKED_AT], layer << 16 | slot
    for k in range(p[c.TOP_K]):
        one = drawn(p, f.FOR_ROUTE, where << 16 | k, p[c.STEP]) * experts >> 32
        if k == 0 and p[c.SKEW_EXPERT] >= 0 and drawn(p, f.FOR_SKEW, where, p[c.STEP]) < p[c.SKEW_SHARE]:
            one = p[c.SKEW_EXPERT]
        i = 0
        while i < k:
            if p[picked + i] == one:
                one = (one + 1) % experts
                i = 0
            else:
                i += 1
        p[picked + k] = one
        p[p[c.ROUTED_AT] + layer * experts + one] += tokens


@compiled
def start(p):
    """Before the first iteration every worker waits for work."""
    p[c.STARTED] = 1
    t = p[c.T_NOW]
    for w in range(p[c.RANKS] * p[c.WORKERS]):
        wait(p, t, w, 0, 0, c.IDLE if p[c.DYNAMIC] else c.FOR_STEP)
        rekey(p, w)
    begin_all(p, t)


@entry
def run(address, until):
    """Go on until something is needed from outside, or virtual time would pass `until`. Why it returned."""
    p = words(address)
    if p[c.STARTED] == 0:
        start(p)
    while True:
        if p[c.HEAP_SIZE] == 0:
            return FINISHED if p[c.STEPS_LEFT] == 0 else STUCK
        t, event = p[p[c.HEAP_AT]], p[p[c.HEAP_AT] + 2]
        if t >= p[c.NEXT_EPOCH]:
            return EPOCH
        if t > until:
            return PACED
        if p[c.FULLEST] >= c.STAGE_ROWS:
            return STAGE_FULL
        kind, high, low = event >> 48, event >> 24 & 0xFFFFFF, event & 0xFFFFFF
        if kind == STEP_BEGUN and low == 0 and p[c.LOADED] == 0:
            return NEED_STEP
        pop(p)
        p[c.T_NOW] = t
        if kind == DONE:
            complete(p, t, low)
            next_task(p, t, low)
        elif kind == RESUMED:
            wake(p, t, low)
        elif kind == ARRIVED:
            count_up(p, t, -1, low, p[c.STEP] << 32 | high)
        elif kind == NOTIFIED:
            satisfied(p, t, high, low, p[dep_at(p, low) + c.D_RELEASER])
        elif kind == OFFERED:
            assign(p, t, low, high)
        elif kind == STEP_ENDED:
            step_end(p, t)
        else:
            step_begin(p, t, low)
