"""Every question that a screen asks, in SQL over the views that people ask too.

Values are put in by `literals.fill`. No screen's question reads events:
they are answered from coverage, tiles and sealed tasks and waits, whatever the trace's size.
"""

from __future__ import annotations

from collections.abc import Iterable

from .literals import Clause, fill, where
from .model import Selection
from .viewport import Viewport

TRACE = """
    SELECT name, state, engine, clock_kind, epoch_ns, t_begin, t_end, event_rows, end_reason, notes
    FROM trace
"""

TRUST = """
    SELECT *
    FROM (
        SELECT program_name AS program, selection, hook_name AS hook,
            sum(eligible) FILTER (WHERE closed)::BIGINT AS eligible,
            sum(observed) FILTER (WHERE closed)::BIGINT AS observed,
            sum(lost) FILTER (WHERE closed)::BIGINT AS lost,
            sum(throttled + faulted) FILTER (WHERE closed)::BIGINT AS refused,
            sum(ring_lost + emit_throttled) FILTER (WHERE closed)::BIGINT AS not_written,
            sum(emitted)::BIGINT AS emitted,
            count(*) FILTER (WHERE NOT closed) AS open
        FROM coverage
        GROUP BY coverage.program, program_name, selection, hook_name
    )
    ORDER BY program, lost + refused + not_written DESC NULLS LAST, eligible DESC NULLS LAST, hook
"""

LOSSES = """
    SELECT *
    FROM (
        SELECT kind, severity, sum(count)::BIGINT AS count, unit, place, todo, min(t_begin) AS first, max(t_end) AS last
        FROM loss
        GROUP BY ALL
    )
    WHERE count > 0
    ORDER BY list_position(['damaged', 'degraded', 'info'], severity), count DESC, kind
"""

EPOCHS = """
    -- An event that several programs are told of is one: of a hook counts whoever was told of most.
    WITH told AS (
        SELECT least((epoch - {first}) * {bars} // {epochs}, {bars} - 1) AS bar, rank, hook, program,
            sum(eligible)::BIGINT AS eligible,
            sum(observed)::BIGINT AS observed,
            sum(eligible - observed + ring_lost + emit_throttled)::BIGINT AS missing,
            bool_and(closed) AS closed
        FROM coverage
        WHERE epoch BETWEEN {first} AND {first} + {epochs} - 1
        GROUP BY ALL
    ), events AS (
        SELECT bar, rank, hook, max(eligible) AS eligible, max(observed) AS observed, max(missing) AS missing,
            bool_and(closed) AS closed
        FROM told
        GROUP BY ALL
    )
    SELECT bar, sum(eligible)::BIGINT AS eligible, sum(observed)::BIGINT AS observed, sum(missing)::BIGINT AS missing,
        bool_and(closed) AS closed
    FROM events
    GROUP BY bar
    ORDER BY bar
"""

SLOWEST = """
    -- What `report classes` says of the same tasks, by the same account of what is missing.
    WITH lost AS (SELECT missing_rows('complete', NULL, NULL) AS completes),
    ran AS (
        SELECT task_class, selection, exec_ns, count(*) AS n
        FROM tasks
        {where}
        GROUP BY ALL
    ), counted AS (
        SELECT task_class, selection, sum(n)::BIGINT AS completed, sum(exec_ns::HUGEINT * n)::BIGINT AS total_ns,
            max(exec_ns) AS max_ns, list(struct_pack(value := exec_ns, upto := upto) ORDER BY upto) AS lengths
        FROM (
            SELECT *, sum(n) OVER (PARTITION BY task_class, selection ORDER BY exec_ns NULLS LAST)::BIGINT AS upto
            FROM ran
        )
        GROUP BY task_class, selection
    ), bounded AS (
        SELECT k.name AS class, c.*, c.selection = 'all' AND l.completes IS NOT NULL AS known,
            CASE WHEN c.selection = 'all' THEN count_bounds(c.completed, c.completed + l.completes)
                ELSE count_bounds(c.completed, NULL) END AS tasks,
            -- Without an account of what is missing: the quantile of what was observed.
            coalesce(l.completes / (c.completed + l.completes), 0) AS m
        FROM lost AS l, counted AS c LEFT JOIN task_classes AS k ON c.task_class = k.id
    ), quantiles AS (
        SELECT *,
            CASE WHEN selection = 'all' THEN counted_bounds(lengths, 0.5, m)
                ELSE no_population(selection) END AS p50,
            CASE WHEN selection = 'all' THEN counted_bounds(lengths, 0.99, m)
                ELSE no_population(selection) END AS p99
        FROM bounded
    )
    SELECT class, task_class, selection, known, tasks, total_ns, p50, p99, max_ns
    FROM quantiles
    ORDER BY {order} DESC NULLS LAST, class, task_class
"""

TILES = """
    WITH slices AS (
        SELECT *,
            unnest(range(greatest(tile >> {shift}, {cell}), least((tile + span - 1) >> {shift}, {last}) + 1)) AS cell
        FROM tiles
        WHERE level = {level} AND tile < {tile_end} AND tile + span > {tile_begin} AND worker IN {workers}
    ), shares AS (
        SELECT *, (least(tile + span, (cell + 1) << {shift}) - greatest(tile, cell << {shift})) / span AS share
        FROM slices
    )
    SELECT worker, (cell - {cell})::INTEGER AS cell,
        sum(busy * share)::BIGINT AS busy,
        sum(wait_none * share)::BIGINT AS wait_none,
        sum(wait_data * share)::BIGINT AS wait_data,
        sum(wait_communication * share)::BIGINT AS wait_communication,
        sum(wait_resource * share)::BIGINT AS wait_resource,
        sum(wait_control * share)::BIGINT AS wait_control,
        arg_max(top_class, top_ns * share) FILTER (WHERE top_ns > 0) AS top_class,
        sum(lost)::BIGINT AS lost
    FROM shares
    GROUP BY ALL
"""

PIECES = """
    WITH pieces AS (
        SELECT worker, start AS begins, complete AS ends, task_class, -1 AS kind
        FROM tasks
        WHERE worker IN {workers} AND start < {end} AND complete > {begin}
        UNION ALL
        SELECT worker, t_begin, coalesce(t_end, {until}), task_class, CASE WHEN task = 0 THEN 0 ELSE dep_class END
        FROM waits
        WHERE worker IN {workers} AND t_begin < {end} AND (t_end > {begin} OR open AND {until} > {begin})
    ), cells AS (
        SELECT *, unnest(range(greatest(begins >> {bits}, {cell}), least((ends - 1) >> {bits}, {last}) + 1)) AS cell
        FROM pieces
    ), shares AS (
        SELECT *, least(ends, (cell + 1) << {bits}) - greatest(begins, cell << {bits}) AS ns
        FROM cells
    )
    SELECT worker, (cell - {cell})::INTEGER AS cell,
        coalesce(sum(ns) FILTER (WHERE kind = -1), 0)::BIGINT AS busy,
        coalesce(sum(ns) FILTER (WHERE kind = 0), 0)::BIGINT AS wait_none,
        coalesce(sum(ns) FILTER (WHERE kind = 1), 0)::BIGINT AS wait_data,
        coalesce(sum(ns) FILTER (WHERE kind = 2), 0)::BIGINT AS wait_communication,
        coalesce(sum(ns) FILTER (WHERE kind = 3), 0)::BIGINT AS wait_resource,
        coalesce(sum(ns) FILTER (WHERE kind = 4), 0)::BIGINT AS wait_control,
        arg_max(task_class, ns) FILTER (WHERE kind = -1) AS top_class,
        0::BIGINT AS lost
    FROM shares
    GROUP BY worker, cell
"""

LOST_WHERE = """
    SELECT rank, worker, kind, count, t_begin, t_end
    FROM loss
    WHERE severity <> 'info' AND coalesce(t_begin, {begin}) < {end} AND coalesce(t_end, {end}) >= {begin}
    ORDER BY t_begin NULLS FIRST
"""

MARKS = """
    SELECT t, kind, text, firings
    FROM marks
    WHERE t >= {begin} AND t < {end}
    ORDER BY t
"""

TASKS = """
    SELECT rank, task, class, worker, start, complete, exec_ns, queue_ns, request, missing
    FROM tasks
    {where}
    ORDER BY {order} NULLS LAST, task
    LIMIT {limit} OFFSET {offset}
"""

TASK = """
    SELECT t.task, t.class, t.ready, t.assign, t.start, t.complete, t.dep, t.dep_name, t.dep_class, t.released_by,
        d.wanted, p.name AS producer_class
    FROM tasks AS t
    LEFT JOIN dependencies AS d ON d.id = t.dep
    LEFT JOIN task_classes AS p ON p.id = d.producer_class
    WHERE t.task = {task} AND t.rank = {rank}
"""

RELEASER = """
    SELECT class, worker
    FROM tasks
    WHERE task = {task}
"""

PRODUCERS = """
    SELECT t.rank, t.task, t.class, t.worker, t.start, t.complete, t.exec_ns, t.queue_ns, t.request, t.missing
    FROM tasks AS t
    WHERE t.task >> 32 = {iteration}
        AND t.task & 4294967295 IN (SELECT "index" FROM task_deps WHERE dep = {dep} AND releases)
    ORDER BY t.complete DESC NULLS FIRST, t.task
"""

REQUESTS = """
    SELECT request, external_id, tenant, slot, state, arrival, admitted, ended, prompt_tokens, tokens,
        queued_ns, ttft_ns, per_token_ns, total_ns, covered,
        exec_ns, queue_ns, wait_data_ns, wait_communication_ns, wait_resource_ns, wait_control_ns,
        shared_exec_ns, shared_queue_ns, shared_wait_data_ns, shared_wait_communication_ns,
        shared_wait_resource_ns, shared_wait_control_ns
    FROM requests
    {where}
    ORDER BY {order} NULLS LAST, request
    LIMIT {limit} OFFSET {offset}
"""

NOW = """
    SELECT rank, worker, waiting, dep, dep_name, seen, wanted, waited_ns, task, fired
    FROM now
    ORDER BY waited_ns DESC NULLS LAST, worker
"""

REQUEST_ORDERS = ("arrival", "ttft_ns DESC", "per_token_ns DESC", "total_ns DESC", "queued_ns DESC", "tokens DESC")
TASK_ORDERS = ("start", "exec_ns DESC", "queue_ns DESC", "complete", "class", "worker")
CLASS_ORDERS = {
    "total": "total_ns",
    "p99": "p99.high",
    "p50": "p50.high",
    "max": "max_ns",
    "tasks": "tasks.low",
}
"""Orders of the classes, by what they are called"""


def of_request(request: int) -> Clause:
    """Tasks that worked for a request, alone or with a batch that it was in."""
    return Clause(
        fill(
            "(request = {request} OR request IN "
            "(SELECT request_set + 2147483648 FROM request_sets WHERE request = {request}))",
            request=request,
        )
    )


def of_tasks(selection: Selection) -> list[str]:
    """Conditions on `tasks` for what is selected; the interval is the question's window."""
    told = []
    if selection.worker is not None:
        told.append(fill("worker = {worker}", worker=selection.worker))
    if selection.task_class is not None:
        told.append(fill("class = {name}", name=selection.task_class))
    if selection.request is not None:
        told.append(of_request(selection.request))
    return told


def slowest(selection: Selection, order: str) -> str:
    """How often and how long the tasks of each class ran that completed in the window; order: of `CLASS_ORDERS`."""
    completed = "complete >= window_begin() AND complete < window_end()"
    return fill(SLOWEST, where=where(completed, *of_tasks(selection)), order=Clause(CLASS_ORDERS[order]))


def of_requests(selection: Selection) -> list[str]:
    """Conditions on `requests` for what is selected."""
    told = []
    if selection.request is not None:
        told.append(fill("request = {request}", request=selection.request))
    if selection.interval is not None:
        begin, end = selection.interval
        told.append(fill("arrival < {end} AND coalesce(ended, {end}) >= {begin}", begin=begin, end=end))
    return told


def timeline(view: Viewport, workers: Iterable[int], *, until: int, tasks: bool = False) -> str:
    """What these workers did in each cell of the view: from tiles, or from tasks and waits.

    until: device time to which a wait lasts that has not ended: the trace's end. tasks: not from tiles, which are too
    coarse for the closest views anyway.
    """
    workers = list(workers)
    if view.level is None or tasks:
        return fill(
            PIECES,
            workers=workers,
            begin=view.begin,
            end=view.end,
            until=until,
            bits=view.bits,
            cell=view.first,
            last=view.last,
        )
    return fill(
        TILES,
        workers=workers,
        level=view.level,
        shift=view.bits - view.level,
        cell=view.first,
        last=view.last,
        tile_begin=view.begin >> view.level,
        tile_end=view.end >> view.level,
    )
