-- meaning: How long tasks of each class take, and how long they lie ready before a worker begins them.
-- column: class VARCHAR: name of the task class
-- column: selection VARCHAR: what its rows stand for: only of all events is there a distribution
-- column: tasks STRUCT [tasks]: that completed in the window
-- column: exec_ms DOUBLE [ms]: running time of those recorded, also what of it lay before the window
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
-- Counted, not listed: durations are whole ticks, so that of all tasks' only thousands differ.
ran AS (
    SELECT task_class, selection, exec_ns, count(*) AS n
    FROM tasks WHERE complete >= window_begin() AND complete < window_end()
    GROUP BY task_class, selection, exec_ns
),
queued AS (
    SELECT task_class, selection, queue_ns, count(*) AS n
    FROM tasks
    -- A start that was lost is among the missing already; one whose ready is not known is missing, too.
    WHERE start >= window_begin() AND start < window_end() AND (missing & 4 = 0 OR queue_ns IS NOT NULL)
    GROUP BY task_class, selection, queue_ns
),
execs AS (
    SELECT
        task_class, selection, sum(n)::BIGINT AS completed, sum(exec_ns::HUGEINT * n) AS exec_ns,
        -- Only what stands for all of them is a population.
        list({'value': exec_ns, 'upto': upto} ORDER BY upto) FILTER (WHERE selection = 'all') AS lengths
    FROM (
        SELECT
            *, sum(n) OVER (PARTITION BY task_class, selection ORDER BY exec_ns ASC NULLS LAST)::BIGINT AS upto
        FROM ran
    ) GROUP BY task_class, selection
),
queues AS (
    SELECT task_class, selection, list({'value': queue_ns, 'upto': upto} ORDER BY upto) AS lengths
    FROM (
        SELECT
            *, sum(n) OVER (PARTITION BY task_class, selection ORDER BY queue_ns ASC NULLS LAST)::BIGINT AS upto
        FROM queued WHERE selection = 'all'
    ) GROUP BY task_class, selection
),
counted AS (
    SELECT
        coalesce(e.task_class, q.task_class) AS task_class, coalesce(e.selection, q.selection) AS selection,
        coalesce(e.completed, 0) AS completed, e.exec_ns, e.lengths AS execs, q.lengths AS queues
    FROM execs AS e FULL JOIN queues AS q
        ON e.task_class = q.task_class AND e.selection IS NOT DISTINCT FROM q.selection
)
SELECT
    coalesce(k.name, 'class ' || c.task_class) AS class,
    c.selection,
    CASE WHEN c.selection = 'all' THEN count_bounds(c.completed, c.completed + l.completes)
        ELSE count_bounds(c.completed, NULL) END AS tasks,
    c.exec_ns / 1e6 AS exec_ms,
    CASE WHEN c.selection = 'all' THEN counted_bounds(c.execs, 0.5, l.completes / (c.execs[-1].upto + l.completes))
        ELSE no_population(c.selection) END AS exec_p50,
    CASE WHEN c.selection = 'all' THEN counted_bounds(c.execs, 0.9, l.completes / (c.execs[-1].upto + l.completes))
        ELSE no_population(c.selection) END AS exec_p90,
    CASE WHEN c.selection = 'all' THEN counted_bounds(c.execs, 0.99, l.completes / (c.execs[-1].upto + l.completes))
        ELSE no_population(c.selection) END AS exec_p99,
    CASE WHEN c.selection = 'all' THEN counted_bounds(c.queues, 0.5, l.starts / (c.queues[-1].upto + l.starts))
        ELSE no_population(c.selection) END AS queue_p50,
    CASE WHEN c.selection = 'all' THEN counted_bounds(c.queues, 0.99, l.starts / (c.queues[-1].upto + l.starts))
        ELSE no_population(c.selection) END AS queue_p99,
    k.operator,
    k.layer
FROM lost AS l, counted AS c LEFT JOIN task_classes AS k ON c.task_class = k.id
ORDER BY c.exec_ns DESC NULLS LAST, c.task_class
