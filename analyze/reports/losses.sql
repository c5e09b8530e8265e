-- meaning: What is known to be missing, where, when, and what to do.
-- portable: yes
-- column: kind VARCHAR: kind of loss
-- column: severity VARCHAR: info, degraded or damaged
-- column: count BIGINT: how many
-- column: unit VARCHAR: of what
-- column: rank SMALLINT: device, where it has one
-- column: worker INTEGER: worker, where it has one
-- column: hook_name VARCHAR: hook, where it is known
-- column: t_begin BIGINT [ns]: no earlier than
-- column: t_end BIGINT [ns]: no later than
-- column: place VARCHAR: where it happens
-- column: todo VARCHAR: what to do
--
SELECT
    kind, severity, CAST(sum(count) AS BIGINT) AS count, unit, rank, worker, hook_name, min(t_begin) AS t_begin,
    max(t_end) AS t_end, place, todo
FROM loss
GROUP BY kind, severity, unit, rank, worker, hook_name, place, todo
ORDER BY severity, count DESC, kind, worker
