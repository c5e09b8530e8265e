-- call: covered(t_from, t_to)
-- returns: DOUBLE
-- meaning: The share of the events between two device times that are in the trace, over all hooks and whole intervals
--   that overlap; null where nothing was eligible and where that is not known. Rows that were lost or cannot be read
--   count against it in full.
-- reads: flow, gone
--
(
    SELECT CASE WHEN f.known AND g.known AND f.eligible > 0
        THEN (greatest(f.written - g.missing - getvariable('unaccounted'), 0) / f.eligible)::DOUBLE END
    FROM (
        SELECT bool_and(closed) AS known, sum(eligible) AS eligible, sum(written) AS written
        FROM temp.main.stored_flow
        WHERE t_begin <= t_to AND t_end >= t_from
    ) AS f,
    (
        SELECT coalesce(bool_and(counted), true) AS known, coalesce(sum(rows), 0) AS missing
        FROM temp.main.stored_gone
        WHERE coalesce(t_begin <= t_to, true) AND coalesce(t_end >= t_from, true)
    ) AS g
)
