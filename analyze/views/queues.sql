-- meaning: How deep each worker's queue was, whenever an event told: after every assign and at every pressure.
-- reads: events, task_classes, programs
-- calls: utc, utc_error_ns, selection_of
-- coverage: rows
-- column: t BIGINT [ns]: device time
-- column: rank SMALLINT: device
-- column: worker INTEGER: whose queue; null: of a pressure whose assign was lost
-- column: depth BIGINT [tasks]: tasks in it then
-- column: capacity BIGINT [tasks]: that it holds; null at a pressure
-- column: threshold BIGINT [tasks]: that was crossed; null at an assign
-- column: what VARCHAR: assign, above or below (the threshold)
-- column: by_worker INTEGER: who told
-- column: task BIGINT: task generation that was put in, or taken out
-- column: class VARCHAR: its class
-- column: time TIMESTAMP_NS [UTC]: `t` by the host's clock
-- column: time_error_ns BIGINT [ns]: `time` is within this of the host's clock; null where that is not bounded
-- column: selection VARCHAR: what the row stands for: all, sampled(1/n) or escalated(program)
--
SELECT
    q.* EXCLUDE (task_class, emitted),
    CASE WHEN q.task_class >= 0 THEN getvariable('class_names')[q.task_class::BIGINT + 1] END AS class,
    utc(q.t) AS time,
    utc_error_ns(q.t) AS time_error_ns,
    selection_of(q.emitted) AS selection
FROM (
    SELECT
        t, rank, (aux >> 48 & 65535)::INTEGER AS worker, aux >> 24 & 16777215 AS depth, aux & 16777215 AS capacity,
        NULL::BIGINT AS threshold, 'assign' AS what, worker AS by_worker, task, task_class, "by" AS emitted
    FROM stored_events WHERE hook = 2
    UNION ALL
    -- Whoever takes a task out is the queue's own worker; whoever puts one in said with its assign whose it is.
    SELECT
        p.t, p.rank, CASE WHEN p.flags & 2 <> 0 THEN p.worker ELSE a.target END, p.aux >> 32 & 4294967295, NULL,
        p.aux & 4294967295, CASE WHEN p.flags & 2 <> 0 THEN 'below' ELSE 'above' END, p.worker, p.task, p.task_class,
        p."by"
    FROM (SELECT * FROM stored_events WHERE hook = 12) AS p LEFT JOIN (
        SELECT rank, worker, task, any_value((aux >> 48 & 65535)::INTEGER) AS target
        FROM stored_events WHERE hook = 2 GROUP BY rank, worker, task
    ) AS a ON p.rank = a.rank AND p.worker = a.worker AND p.task = a.task
) AS q
