-- meaning: One row per request and task that worked for it: a task that is shared by a batch stands in every member's
--   rows, marked shared. What is shared belongs to all of its members: it is not to be divided among them or added up.
-- reads: tasks, request_sets, task_classes, dependencies, derivation
-- calls: utc
-- coverage: host_ring, pairs
-- column: request BIGINT: request generation
-- column: shared BOOLEAN: the task worked for the request's whole batch
-- column: members BIGINT [requests]: how many requests the task worked for
-- column: rank SMALLINT: device
-- column: task BIGINT: task generation
-- column: task_class INTEGER: key of `task_classes`
-- column: class VARCHAR: name of the task class
-- column: step BIGINT: iteration of the engine
-- column: worker INTEGER: who ran it
-- column: ready BIGINT [ns]: its last dependency was satisfied
-- column: start BIGINT [ns]: a worker began it
-- column: complete BIGINT [ns]: the worker had finished it
-- column: exec_ns BIGINT [ns]: complete - start
-- column: queue_ns BIGINT [ns]: start - ready
-- column: dep BIGINT: the dependency that was satisfied last, 0 none
-- column: dep_name VARCHAR: its name
-- column: released_by BIGINT: task generation that released it, 0 none
-- column: missing SMALLINT: expected events that were not recorded: 1 ready, 2 assign, 4 start, 8 complete
-- column: time TIMESTAMP_NS [UTC]: its `start` by the host's clock
-- column: selection VARCHAR: what the row stands for: all, sampled(1/n) or escalated(program)
--
SELECT
    coalesce(m.request, t.request) AS request,
    m.request IS NOT NULL AS shared,
    coalesce(m.members, 1) AS members,
    t.rank,
    t.task,
    t.task_class,
    CASE WHEN t.task_class >= 0 THEN getvariable('class_names')[t.task_class::BIGINT + 1] END AS class,
    t.step,
    t.worker,
    t.ready,
    t.start,
    t.complete,
    t.exec_ns,
    t.queue_ns,
    t.dep,
    CASE WHEN t.dep >= 0 THEN getvariable('dep_names')[t.dep::BIGINT + 1] END AS dep_name,
    t.released_by,
    t.missing,
    utc(t.start) AS time,
    getvariable('derived_selection') AS selection
FROM stored_tasks AS t LEFT JOIN (
    SELECT request_set + 2147483648 AS request_set, request, count(*) OVER (PARTITION BY request_set) AS members
    FROM stored_request_sets
) AS m ON t.request = m.request_set
-- A set that nobody told of has no members to stand here, and a request that is not known has no name.
WHERE m.request IS NOT NULL OR t.request BETWEEN 1 AND 2147483647
