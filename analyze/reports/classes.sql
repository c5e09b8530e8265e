-- meaning: How long tasks of each class take, and how long they lie ready before a worker begins them.
-- column: class VARCHAR: name of the task class
-- column: selection VARCHAR: what its rows stand for: only of all events is there a distribution
-- column: tasks STRUCT [tasks]: that completed in the window
-- column: exec_ms DOUBLE [ms]: running time of those recorded
-- column: exec_p50 STRUCT [ns]: half of them run no longer; between low and high, open where missing ones may lie beyond
-- column: exec_p90 STRUCT [ns]: … nine of ten
-- column: exec_p99 STRUCT [ns]: … 99 of 100
-- column: queue_p50 STRUCT [ns]: half of those that started in the window had been ready no longer
-- column: queue_p99 STRUCT [ns]: … 99 of 100
-- column: operator VARCHAR: operator of the model
-- column: layer INTEGER: its layer, -1 where it has none
--
WITH lost AS (
    SELECT missing_rows('complete', NULL, NULL) AS completes, missing_rows('start', NULL, NULL) AS starts
),
counted AS MATERIALIZED (
    SELECT
        class, task_class, selection,
        count(*) FILTER (WHERE complete >= window_begin() AND complete < window_end()) AS completed,
        sum(exec_ns) FILTER (WHERE complete >= window_begin() AND complete < window_end()) AS exec_ns,
        -- Only what stands for all of them is a population. Sorted once: three quantiles sort it again in no time.
        list_sort(
            list(exec_ns) FILTER (
                WHERE complete >= window_begin() AND complete < window_end() AND selection = 'all'
            ), 'ASC', 'NULLS LAST'
        ) AS execs,
        -- A start that was lost is among the missing already; one whose ready is not known is missing, too.
        list_sort(
            list(queue_ns) FILTER (
                WHERE start >= window_begin() AND start < window_end() AND selection = 'all'
                    AND (missing & 4 = 0 OR queue_ns IS NOT NULL)
            ), 'ASC', 'NULLS LAST'
        ) AS queues
    FROM tasks
    GROUP BY class, task_class, selection
)
SELECT
    coalesce(c.class, 'class ' || c.task_class) AS class,
    c.selection,
    CASE WHEN c.selection = 'all' THEN count_bounds(c.completed, c.completed + l.completes)
        ELSE count_bounds(c.completed, NULL) END AS tasks,
    c.exec_ns / 1e6 AS exec_ms,
    quantile_bounds(c.execs, 0.5, l.completes / (len(c.execs) + l.completes)) AS exec_p50,
    quantile_bounds(c.execs, 0.9, l.completes / (len(c.execs) + l.completes)) AS exec_p90,
    quantile_bounds(c.execs, 0.99, l.completes / (len(c.execs) + l.completes)) AS exec_p99,
    quantile_bounds(c.queues, 0.5, l.starts / (len(c.queues) + l.starts)) AS queue_p50,
    quantile_bounds(c.queues, 0.99, l.starts / (len(c.queues) + l.starts)) AS queue_p99,
    k.operator,
    k.layer
FROM lost AS l, counted AS c LEFT JOIN task_classes AS k ON c.task_class = k.id
WHERE c.completed > 0 OR c.queues IS NOT NULL
ORDER BY c.exec_ns DESC NULLS LAST, c.task_class
