-- table: requests
-- meaning: Request generations: one occupancy of a slot each; how long each took, and what was done for it. Of a window
--   those that were there in it, waiting or served: when each arrived, began and ended is of its whole life, what was
--   done for it of the window.
-- reads: requests, request_sets, tasks, waits, serving, derivation, window
-- calls: covered, missing_rows
-- coverage: host_ring, rows
-- column: admitted BIGINT [ns]: it got its slot
-- column: first_token BIGINT [ns]: its first token was there
-- column: ended BIGINT [ns]: it finished or was cancelled; null: that was lost, or it goes on
-- column: state VARCHAR: the last that was recorded: admitted, prefill_chunk, first_token, token, preempted, resumed,
--   finished, cancelled
-- column: tokens BIGINT [tokens]: of these, recorded
-- column: queued_ns BIGINT [ns]: admitted - arrival
-- column: ttft_ns BIGINT [ns]: time to first token: first_token - arrival
-- column: per_token_ns DOUBLE [ns]: time for each token after the first; null where one of them may be missing
-- column: total_ns BIGINT [ns]: ended - arrival
-- column: tasks BIGINT [tasks]: that worked for it alone
-- column: exec_ns BIGINT [ns]: running time of these
-- column: queue_ns BIGINT [ns]: from ready to start of these
-- column: wait_data_ns BIGINT [ns]: time that workers waited for data with these in hand
-- column: wait_communication_ns BIGINT [ns]: … for a peer
-- column: wait_resource_ns BIGINT [ns]: … for a resource
-- column: wait_control_ns BIGINT [ns]: … for control
-- column: shared_tasks BIGINT [tasks]: that worked for a batch with it in: the same ones in every member's row
-- column: shared_exec_ns BIGINT [ns]: running time of these
-- column: shared_queue_ns BIGINT [ns]: from ready to start of these
-- column: shared_wait_data_ns BIGINT [ns]: time that workers waited for data with these in hand
-- column: shared_wait_communication_ns BIGINT [ns]: … for a peer
-- column: shared_wait_resource_ns BIGINT [ns]: … for a resource
-- column: shared_wait_control_ns BIGINT [ns]: … for control
-- column: selection VARCHAR: what the counted events stand for: all, sampled(1/n) or escalated(program)
-- column: covered DOUBLE: share of all eligible events from its arrival to its end that are in the trace
--
WITH members AS (
    SELECT request_set + 2147483648 AS request_set, request FROM stored_request_sets
),
worked AS (
    SELECT request, count(*) AS tasks, sum(exec_ns)::BIGINT AS exec_ns, sum(queue_ns)::BIGINT AS queue_ns
    FROM stored_tasks GROUP BY request
),
waited AS (
    SELECT
        request,
        sum(ns) FILTER (WHERE dep_class = 1)::BIGINT AS data,
        sum(ns) FILTER (WHERE dep_class = 2)::BIGINT AS communication,
        sum(ns) FILTER (WHERE dep_class = 3)::BIGINT AS resource,
        sum(ns) FILTER (WHERE dep_class = 4)::BIGINT AS control
    FROM stored_waits WHERE task <> 0 GROUP BY request
),
worked_with AS (
    SELECT
        m.request, sum(w.tasks)::BIGINT AS tasks, sum(w.exec_ns)::BIGINT AS exec_ns,
        sum(w.queue_ns)::BIGINT AS queue_ns
    FROM members AS m JOIN worked AS w ON w.request = m.request_set GROUP BY m.request
),
waited_with AS (
    SELECT
        m.request, sum(w.data)::BIGINT AS data, sum(w.communication)::BIGINT AS communication,
        sum(w.resource)::BIGINT AS resource, sum(w.control)::BIGINT AS control
    FROM members AS m JOIN waited AS w ON w.request = m.request_set GROUP BY m.request
),
told AS (
    SELECT
        request,
        min(t) FILTER (WHERE state = 1) AS admitted,
        min(t) FILTER (WHERE state = 3) AS first_token,
        max(t) FILTER (WHERE state IN (3, 4)) AS last_token,
        count(*) FILTER (WHERE state IN (3, 4)) AS tokens,
        max(t) FILTER (WHERE state IN (7, 8)) AS ended,
        max(t) AS last,
        arg_max(state, row(t, state)) AS state
    FROM stored_serving WHERE hook = 10 GROUP BY request
),
lives AS (
    SELECT
        r.request,
        -- Whose end was lost had left its slot when the next one got it.
        coalesce(k.ended, lead(k.admitted) OVER (PARTITION BY r.slot ORDER BY k.admitted, r.request)) AS gone
    FROM stored_requests AS r JOIN told AS k ON r.request = k.request WHERE k.admitted IS NOT NULL
)
SELECT
    r.*,
    k.admitted,
    k.first_token,
    k.ended,
    getvariable('request_states')[k.state] AS state,
    coalesce(k.tokens, 0) AS tokens,
    k.admitted - r.arrival AS queued_ns,
    k.first_token - r.arrival AS ttft_ns,
    CASE WHEN k.tokens > 1 AND missing_rows('request', k.first_token, k.last_token) = 0
        THEN (k.last_token - k.first_token) / (k.tokens - 1) END AS per_token_ns,
    k.ended - r.arrival AS total_ns,
    coalesce(w.tasks, 0) AS tasks,
    coalesce(w.exec_ns, 0) AS exec_ns,
    coalesce(w.queue_ns, 0) AS queue_ns,
    coalesce(v.data, 0) AS wait_data_ns,
    coalesce(v.communication, 0) AS wait_communication_ns,
    coalesce(v.resource, 0) AS wait_resource_ns,
    coalesce(v.control, 0) AS wait_control_ns,
    coalesce(ww.tasks, 0) AS shared_tasks,
    coalesce(ww.exec_ns, 0) AS shared_exec_ns,
    coalesce(ww.queue_ns, 0) AS shared_queue_ns,
    coalesce(vw.data, 0) AS shared_wait_data_ns,
    coalesce(vw.communication, 0) AS shared_wait_communication_ns,
    coalesce(vw.resource, 0) AS shared_wait_resource_ns,
    coalesce(vw.control, 0) AS shared_wait_control_ns,
    getvariable('derived_selection') AS selection,
    covered(r.arrival, coalesce(k.ended, getvariable('window_end'))) AS covered
FROM stored_requests AS r
    LEFT JOIN told AS k ON r.request = k.request
    LEFT JOIN worked AS w ON r.request = w.request
    LEFT JOIN waited AS v ON r.request = v.request
    LEFT JOIN worked_with AS ww ON r.request = ww.request
    LEFT JOIN waited_with AS vw ON r.request = vw.request
    LEFT JOIN lives AS l ON r.request = l.request
WHERE coalesce(r.arrival <= getvariable('window_to'), true)
    AND coalesce(coalesce(k.ended, l.gone) >= getvariable('window_from'), true)
