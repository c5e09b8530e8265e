-- meaning: One row per iteration of the engine that left anything in the trace. Of a window those that overlap it: when
--   each began and ended is of the whole step, what was done in it of the window.
-- reads: tasks, waits, serving, step_requests, derivation, window
-- calls: utc, covered
-- coverage: rows
-- column: step BIGINT: iteration
-- column: t_begin BIGINT [ns]: it began, as its step events say; else its first recorded task
-- column: t_end BIGINT [ns]: it ended, as its step event says; else its last recorded task
-- column: ns BIGINT [ns]: t_end - t_begin
-- column: told BOOLEAN: both ends come from step events; false: of the tasks that were recorded, so it may be longer
-- column: requests BIGINT [requests]: members of the batch; 0 where nobody told
-- column: tasks BIGINT [tasks]: tasks of it
-- column: exec_ns BIGINT [ns]: running time of all its tasks
-- column: queue_ns BIGINT [ns]: from ready to start, of all its tasks
-- column: wait_data_ns BIGINT [ns]: time that workers waited for data with a task of it in hand
-- column: wait_communication_ns BIGINT [ns]: … for a peer
-- column: wait_resource_ns BIGINT [ns]: … for a resource
-- column: wait_control_ns BIGINT [ns]: … for control
-- column: time TIMESTAMP_NS [UTC]: `t_begin` by the host's clock
-- column: selection VARCHAR: what the counted events stand for: all, sampled(1/n) or escalated(program)
-- column: covered DOUBLE: share of all eligible events from its begin to its end that are in the trace
--
WITH told AS (
    SELECT
        step,
        -- Whoever ends a step says when it began, so that one of the two events is enough for that.
        coalesce(min(t) FILTER (WHERE flags & 1 <> 0), min(t - since_ns) FILTER (WHERE since_ns < 4294967295)) AS t_begin,
        max(t) FILTER (WHERE flags & 2 <> 0) AS t_end
    FROM stored_serving WHERE hook = 11 GROUP BY step
),
worked AS (
    SELECT
        step, count(*) AS tasks, sum(exec_ns)::BIGINT AS exec_ns, sum(queue_ns)::BIGINT AS queue_ns,
        min(coalesce(start, ready, assign)) AS first, max(coalesce(complete, start)) AS last
    FROM stored_tasks GROUP BY step
),
waited AS (
    SELECT
        step,
        sum(ns) FILTER (WHERE dep_class = 1)::BIGINT AS data,
        sum(ns) FILTER (WHERE dep_class = 2)::BIGINT AS communication,
        sum(ns) FILTER (WHERE dep_class = 3)::BIGINT AS resource,
        sum(ns) FILTER (WHERE dep_class = 4)::BIGINT AS control
    FROM stored_waits WHERE task <> 0 GROUP BY step
),
steps AS (
    SELECT
        step, coalesce(k.t_begin, w.first) AS t_begin, coalesce(k.t_end, w.last) AS t_end,
        k.t_begin IS NOT NULL AND k.t_end IS NOT NULL AS told, w.tasks, w.exec_ns, w.queue_ns
    FROM told AS k FULL JOIN worked AS w USING (step)
)
SELECT
    s.step,
    s.t_begin,
    s.t_end,
    s.t_end - s.t_begin AS ns,
    s.told,
    coalesce(m.requests, 0) AS requests,
    coalesce(s.tasks, 0) AS tasks,
    coalesce(s.exec_ns, 0) AS exec_ns,
    coalesce(s.queue_ns, 0) AS queue_ns,
    coalesce(v.data, 0) AS wait_data_ns,
    coalesce(v.communication, 0) AS wait_communication_ns,
    coalesce(v.resource, 0) AS wait_resource_ns,
    coalesce(v.control, 0) AS wait_control_ns,
    utc(s.t_begin) AS time,
    getvariable('derived_selection') AS selection,
    covered(s.t_begin, s.t_end) AS covered
FROM steps AS s
    LEFT JOIN waited AS v ON s.step = v.step
    LEFT JOIN (
        SELECT s.step, count(DISTINCT r.request) AS requests
        FROM steps AS s JOIN stored_step_requests AS r
            ON s.step >= r.from_step AND s.step <= CASE WHEN r.to_step < 0 THEN 9223372036854775807 ELSE r.to_step END
        GROUP BY s.step
    ) AS m ON s.step = m.step
WHERE coalesce(s.t_begin <= getvariable('window_to'), true) AND coalesce(s.t_end >= getvariable('window_from'), true)
