-- meaning: Iterations of the engine, the longest first.
-- portable: yes
-- column: step BIGINT: iteration
-- column: ms DOUBLE [ms]: from its begin to its end
-- column: told BOOLEAN: both come from step events; false: of the tasks that were recorded, so it may be longer
-- column: requests BIGINT [requests]: members of the batch
-- column: tasks BIGINT [tasks]: recorded
-- column: exec_ms DOUBLE [ms]: their running time
-- column: queue_ms DOUBLE [ms]: from ready to start
-- column: wait_data_ms DOUBLE [ms]: time that workers waited for data with one of them in hand
-- column: wait_communication_ms DOUBLE [ms]: … for a peer
-- column: wait_other_ms DOUBLE [ms]: … for a resource or control
-- column: t_begin BIGINT [ns]: device time of its begin
-- column: covered DOUBLE: share of all eligible events from its begin to its end that are in the trace
--
SELECT
    step,
    ns / 1e6 AS ms,
    told,
    requests,
    tasks,
    exec_ns / 1e6 AS exec_ms,
    queue_ns / 1e6 AS queue_ms,
    wait_data_ns / 1e6 AS wait_data_ms,
    wait_communication_ns / 1e6 AS wait_communication_ms,
    (wait_resource_ns + wait_control_ns) / 1e6 AS wait_other_ms,
    t_begin,
    covered
FROM steps
ORDER BY ms DESC NULLS LAST, step
