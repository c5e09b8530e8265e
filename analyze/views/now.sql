-- table: now
-- reads: now, dependencies
-- coverage: workers
-- column: waited_ns BIGINT [ns]: from the begin of the wait to its monitor's last sign of life
-- column: dep_name VARCHAR: name of the dependency waited for
--
SELECT
    n.*,
    CASE WHEN n.waiting THEN greatest(n.heartbeat - n.t, 0) END AS waited_ns,
    d.name AS dep_name
FROM stored_now AS n LEFT JOIN stored_dependencies AS d ON n.dep = d.id
