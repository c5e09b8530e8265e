-- meaning: What each worker did with its time in the window: busy, waiting and for what, idle. The least busy first,
--   and last those that ran nothing and waited for nothing, as schedulers do.
-- portable: yes
-- column: worker INTEGER: worker id
-- column: rank SMALLINT: device
-- column: sm INTEGER: multiprocessor
-- column: role VARCHAR: compute, scheduler, …
-- column: tasks BIGINT [tasks]: that it ran at least in part
-- column: busy_ms DOUBLE [ms]: inside tasks, as recorded: of each the part in the window
-- column: busy_low DOUBLE: the least share of its time that it was busy
-- column: busy_high DOUBLE: the greatest: whatever is not known to be a wait might have been a task
-- column: wait_data_ms DOUBLE [ms]: waiting for data
-- column: wait_communication_ms DOUBLE [ms]: waiting for a peer
-- column: wait_other_ms DOUBLE [ms]: waiting for a resource or control
-- column: idle_ms DOUBLE [ms]: waiting for work
-- column: other_ms DOUBLE [ms]: the rest: scheduling, and what was not recorded
-- column: lost BIGINT [events]: its events that never reached its monitor
--
SELECT
    worker,
    rank,
    sm,
    role,
    tasks,
    busy_ns / 1e6 AS busy_ms,
    busy AS busy_low,
    1.0 * (busy_ns + other_ns) / (
        busy_ns + wait_data_ns + wait_communication_ns + wait_resource_ns + wait_control_ns + idle_ns + other_ns
    ) AS busy_high,
    wait_data_ns / 1e6 AS wait_data_ms,
    wait_communication_ns / 1e6 AS wait_communication_ms,
    (wait_resource_ns + wait_control_ns) / 1e6 AS wait_other_ms,
    idle_ns / 1e6 AS idle_ms,
    other_ns / 1e6 AS other_ms,
    lost
FROM workers
ORDER BY
    CASE WHEN tasks + wait_data_ns + wait_communication_ns + wait_resource_ns + wait_control_ns + idle_ns > 0
        THEN 0 ELSE 1 END,
    busy_ms, worker
