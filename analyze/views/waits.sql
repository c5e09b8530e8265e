-- table: waits
-- reads: waits, task_classes, dependencies, derivation
-- calls: utc, utc_error_ns
-- coverage: pairs
-- column: kind VARCHAR: what for: work (of a worker that has none), data, communication, resource, control, none
-- column: class VARCHAR: name of the task class; null where there is no task
-- column: dep_name VARCHAR: name of the dependency waited for
-- column: shared BOOLEAN: of a task that is work for a whole batch: it held up every member
-- column: time TIMESTAMP_NS [UTC]: its `t_begin` by the host's clock; null without clock fits
-- column: time_error_ns BIGINT [ns]: `time` is within this of the host's clock; null where that is not bounded
-- column: selection VARCHAR: what the row stands for: all, sampled(1/n) or escalated(program)
--
SELECT
    *,
    CASE
        WHEN task = 0 THEN 'work'
        WHEN dep_class >= 0 THEN getvariable('dep_class_names')[dep_class::BIGINT + 1]
    END AS kind,
    CASE WHEN task_class >= 0 THEN getvariable('class_names')[task_class::BIGINT + 1] END AS class,
    CASE WHEN dep >= 0 THEN getvariable('dep_names')[dep::BIGINT + 1] END AS dep_name,
    request BETWEEN 2147483648 AND 4294967294 AS shared,
    utc(t_begin) AS time,
    utc_error_ns(t_begin) AS time_error_ns,
    getvariable('derived_selection') AS selection
FROM stored_waits
