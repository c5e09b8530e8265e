-- table: workers
-- meaning: Who fires hooks, and what each did with its time in the session's window (else the whole trace).
-- reads: workers, tasks, waits, intervals, derivation, window
-- coverage: rows
-- column: tasks BIGINT [tasks]: that it ran at least in part
-- column: busy_ns BIGINT [ns]: time inside tasks
-- column: wait_data_ns BIGINT [ns]: time waiting for data
-- column: wait_communication_ns BIGINT [ns]: time waiting for a peer
-- column: wait_resource_ns BIGINT [ns]: time waiting for a resource
-- column: wait_control_ns BIGINT [ns]: time waiting for control, with a task in hand
-- column: idle_ns BIGINT [ns]: time waiting for work
-- column: other_ns BIGINT [ns]: the rest: scheduling, and what was not recorded
-- column: busy DOUBLE: busy_ns as a share of the time looked at
-- column: incomplete BIGINT: its tasks and waits with an unknown begin or end, whose time is part of `other_ns`
-- column: lost BIGINT [events]: its events that never reached its monitor
-- column: selection VARCHAR: what the counted events stand for: all, sampled(1/n) or escalated(program)
--
WITH looked AS (SELECT getvariable('window_begin') AS t_from, getvariable('window_end') AS t_to),
ran AS (
    SELECT
        worker, count(*) AS tasks,
        -- least() would pass over a null.
        sum(greatest(least(complete, t_to) - greatest(start, t_from), 0)) FILTER (WHERE exec_ns IS NOT NULL)::BIGINT
            AS busy,
        count(*) FILTER (WHERE exec_ns IS NULL) AS incomplete
    FROM stored_tasks, looked GROUP BY worker
),
waited AS (
    SELECT
        worker,
        sum(ns) FILTER (WHERE task <> 0 AND dep_class = 1)::BIGINT AS data,
        sum(ns) FILTER (WHERE task <> 0 AND dep_class = 2)::BIGINT AS communication,
        sum(ns) FILTER (WHERE task <> 0 AND dep_class = 3)::BIGINT AS resource,
        sum(ns) FILTER (WHERE task <> 0 AND dep_class = 4)::BIGINT AS control,
        sum(ns) FILTER (WHERE task = 0 OR dep_class = 0)::BIGINT AS work,
        count(*) FILTER (WHERE ns IS NULL) AS incomplete
    FROM (
        SELECT
            worker, task, dep_class,
            -- One that had not ended lasts to the end of what is looked at.
            CASE WHEN open OR ns IS NOT NULL
                THEN greatest(least(coalesce(t_end, t_to), t_to) - greatest(t_begin, t_from), 0) END AS ns
        FROM stored_waits, looked
    ) GROUP BY worker
),
gone AS (SELECT worker, sum(lost)::BIGINT AS lost FROM stored_intervals WHERE worker IS NOT NULL GROUP BY worker)
SELECT
    w.*,
    coalesce(r.tasks, 0) AS tasks,
    coalesce(r.busy, 0) AS busy_ns,
    coalesce(v.data, 0) AS wait_data_ns,
    coalesce(v.communication, 0) AS wait_communication_ns,
    coalesce(v.resource, 0) AS wait_resource_ns,
    coalesce(v.control, 0) AS wait_control_ns,
    coalesce(v.work, 0) AS idle_ns,
    greatest(
        t_to - t_from - coalesce(r.busy, 0) - coalesce(v.data, 0) - coalesce(v.communication, 0)
        - coalesce(v.resource, 0) - coalesce(v.control, 0) - coalesce(v.work, 0), 0
    ) AS other_ns,
    coalesce(r.busy, 0) / (t_to - t_from) AS busy,
    coalesce(r.incomplete, 0) + coalesce(v.incomplete, 0) AS incomplete,
    coalesce(g.lost, 0) AS lost,
    getvariable('derived_selection') AS selection
FROM looked, stored_workers AS w
    LEFT JOIN ran AS r ON w.worker = r.worker
    LEFT JOIN waited AS v ON w.worker = v.worker
    LEFT JOIN gone AS g ON w.worker = g.worker
