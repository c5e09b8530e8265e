-- meaning: One row per stretch of time that a worker spent between two tasks, and what would have ended it: the task
--   that released what the next one waited for.
-- reads: tasks, intervals, task_classes, dependencies, derivation
-- calls: utc
-- coverage: rows
-- column: rank SMALLINT: device
-- column: worker INTEGER: who was idle
-- column: t_begin BIGINT [ns]: it had finished a task; null: that event was lost
-- column: t_end BIGINT [ns]: it began the next
-- column: ns BIGINT [ns]: t_end - t_begin
-- column: starved_ns BIGINT [ns]: of it, before the next task was ready: there was nothing to do
-- column: late_ns BIGINT [ns]: of it, when the next task was ready: scheduling, the queue, waking up
-- column: after_task BIGINT: task generation that it had finished
-- column: after_class VARCHAR: its class
-- column: task BIGINT: task generation that it began
-- column: class VARCHAR: its class
-- column: step BIGINT: iteration of the engine, of the next task
-- column: dep BIGINT: dependency that the next task waited for last, 0 none
-- column: dep_name VARCHAR: its name
-- column: dep_class SMALLINT: its kind
-- column: producer BIGINT: task generation that released it, 0 none
-- column: producer_class VARCHAR: its class
-- column: producer_worker INTEGER: who ran that
-- column: producer_start BIGINT [ns]: it began
-- column: producer_complete BIGINT [ns]: it was finished
-- column: lost BIGINT [events]: the worker's lost events in the intervals that this lies in: above 0, a task may have
--   run here that nobody recorded
-- column: time TIMESTAMP_NS [UTC]: `t_begin` by the host's clock
-- column: selection VARCHAR: what the counted events stand for: all, sampled(1/n) or escalated(program)
--
WITH ran AS (
    SELECT
        rank, worker, task, task_class, step, start, complete, ready, dep, dep_class, released_by,
        lag(task) OVER w AS after_task, lag(task_class) OVER w AS after_class, lag(complete) OVER w AS after_complete
    FROM stored_tasks
    WHERE worker IS NOT NULL AND start IS NOT NULL
    WINDOW w AS (PARTITION BY rank, worker ORDER BY start, task)
),
gaps AS (
    SELECT * FROM ran WHERE after_task IS NOT NULL AND (after_complete IS NULL OR after_complete < start)
),
producers AS (
    SELECT task, any_value(task_class) AS task_class, any_value(worker) AS worker, min(start) AS start,
        max(complete) AS complete
    FROM stored_tasks WHERE task IN (SELECT released_by FROM gaps) GROUP BY task
),
gone AS (SELECT rank, worker, t_begin, t_end, lost FROM stored_intervals WHERE worker IS NOT NULL AND lost > 0),
lossy AS (
    SELECT g.rank, g.worker, g.task, g.start, sum(l.lost)::BIGINT AS lost
    FROM gaps AS g JOIN gone AS l ON g.rank = l.rank AND g.worker = l.worker
        AND l.t_begin <= g.start AND l.t_end >= coalesce(g.after_complete, g.start)
    GROUP BY g.rank, g.worker, g.task, g.start
)
SELECT
    g.rank,
    g.worker,
    g.after_complete AS t_begin,
    g.start AS t_end,
    g.start - g.after_complete AS ns,
    -- least() and greatest() would pass over a null.
    CASE WHEN g.ready IS NOT NULL AND g.after_complete IS NOT NULL
        THEN greatest(least(g.ready, g.start) - g.after_complete, 0) END AS starved_ns,
    CASE WHEN g.ready IS NOT NULL AND g.after_complete IS NOT NULL
        THEN g.start - greatest(g.after_complete, least(g.ready, g.start)) END AS late_ns,
    g.after_task,
    CASE WHEN g.after_class >= 0 THEN getvariable('class_names')[g.after_class::BIGINT + 1] END AS after_class,
    g.task,
    CASE WHEN g.task_class >= 0 THEN getvariable('class_names')[g.task_class::BIGINT + 1] END AS class,
    g.step,
    g.dep,
    CASE WHEN g.dep >= 0 THEN getvariable('dep_names')[g.dep::BIGINT + 1] END AS dep_name,
    g.dep_class,
    g.released_by AS producer,
    CASE WHEN p.task_class >= 0 THEN getvariable('class_names')[p.task_class::BIGINT + 1] END AS producer_class,
    p.worker AS producer_worker,
    p.start AS producer_start,
    p.complete AS producer_complete,
    coalesce(l.lost, 0) AS lost,
    utc(g.after_complete) AS time,
    getvariable('derived_selection') AS selection
FROM gaps AS g
    LEFT JOIN producers AS p ON g.released_by = p.task
    LEFT JOIN lossy AS l ON g.rank = l.rank AND g.worker = l.worker AND g.task = l.task AND g.start = l.start
