-- table: events
-- reads: events, task_classes, programs
-- calls: utc, utc_error_ns, selection_of
-- coverage: rows
-- column: hook_name VARCHAR: name of the hook; null for one that the ABI does not know
-- column: class VARCHAR: name of the task class; null where `task_classes` has none
-- column: time TIMESTAMP_NS [UTC]: when it fired by the host's clock, from the trace's clock fits; null without fits
-- column: time_error_ns BIGINT [ns]: `time` is within this of the host's clock; null outside the fits, where it is
--   not bounded
-- column: selection VARCHAR: what the row stands for: all, sampled(1/n) or escalated(program); of several programs
--   that emitted it the first in that order
--
SELECT
    *,
    -- Lookups are list elements, not joins: DuckDB drops an expression that nobody asks for, but not a join.
    -- A negative index would count from a list's end.
    CASE WHEN hook >= 0 THEN getvariable('hook_names')[hook::BIGINT + 1] END AS hook_name,
    CASE WHEN task_class >= 0 THEN getvariable('class_names')[task_class::BIGINT + 1] END AS class,
    utc(t) AS time,
    utc_error_ns(t) AS time_error_ns,
    selection_of("by") AS selection
FROM stored_events
