-- meaning: Requests that were there in the window, waiting or served, the longest wait for a first token first. When they
--   began and ended is of their whole life; tasks and waits are those in the window. What was shared with a batch stands in
--   every member's row and is not to be added up.
-- portable: yes
-- column: request BIGINT: request generation
-- column: external_id VARCHAR: the serving system's own name for it
-- column: tenant VARCHAR: tenant
-- column: state VARCHAR: the last that was recorded
-- column: ttft_ms DOUBLE [ms]: time to first token
-- column: queued_ms DOUBLE [ms]: of it, before it got a slot
-- column: per_token_ms DOUBLE [ms]: time for each token after the first
-- column: tokens BIGINT [tokens]: recorded
-- column: total_ms DOUBLE [ms]: from its arrival to its end
-- column: exec_ms DOUBLE [ms]: running time of tasks for it alone
-- column: shared_exec_ms DOUBLE [ms]: running time of tasks for its whole batch
-- column: wait_ms DOUBLE [ms]: time that workers waited with either in hand
-- column: covered DOUBLE: share of all eligible events from its arrival to its end that are in the trace
--
SELECT
    request,
    external_id,
    tenant,
    state,
    ttft_ns / 1e6 AS ttft_ms,
    queued_ns / 1e6 AS queued_ms,
    per_token_ns / 1e6 AS per_token_ms,
    tokens,
    total_ns / 1e6 AS total_ms,
    exec_ns / 1e6 AS exec_ms,
    shared_exec_ns / 1e6 AS shared_exec_ms,
    (
        wait_data_ns + wait_communication_ns + wait_resource_ns + wait_control_ns + shared_wait_data_ns
        + shared_wait_communication_ns + shared_wait_resource_ns + shared_wait_control_ns
    ) / 1e6 AS wait_ms,
    covered
FROM requests
ORDER BY ttft_ms DESC NULLS LAST, request
