-- table: tasks
-- reads: tasks, task_classes, dependencies, derivation
-- calls: utc, utc_error_ns
-- coverage: pairs
-- column: class VARCHAR: name of the task class; null where `task_classes` has none
-- column: dep_name VARCHAR: name of the dependency that was satisfied last
-- column: shared BOOLEAN: work for a whole batch: `request` is a set, and it is booked to none of its members
-- column: time TIMESTAMP_NS [UTC]: its `start` by the host's clock; null without clock fits
-- column: time_error_ns BIGINT [ns]: `time` is within this of the host's clock; null where that is not bounded
-- column: selection VARCHAR: what the row stands for: all, sampled(1/n) or escalated(program)
--
SELECT
    *,
    CASE WHEN task_class >= 0 THEN getvariable('class_names')[task_class::BIGINT + 1] END AS class,
    CASE WHEN dep >= 0 THEN getvariable('dep_names')[dep::BIGINT + 1] END AS dep_name,
    flags & 1 <> 0 AS shared,
    utc(start) AS time,
    utc_error_ns(start) AS time_error_ns,
    getvariable('derived_selection') AS selection
FROM stored_tasks
