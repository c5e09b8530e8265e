-- call: missing_rows(hook_name, t_from, t_to)
-- returns: BIGINT
-- meaning: How many events at a hook are missing from the trace, of those that its recorder (the first program that
--   selects all) was eligible for between two device times (null: the window's): an upper bound, of whole intervals
--   that overlap. Null where it is not known: in an interval that a death cut short or that goes on, after damage
--   without a count, without any coverage.
-- reads: flow, gone, window
--
(
    SELECT CASE WHEN f.known AND g.known THEN f.missing + g.missing + getvariable('unaccounted') END
    FROM (
        SELECT
            coalesce(bool_and(closed), true) AND getvariable('has_flow') AS known,
            coalesce(sum(eligible - written), 0)::BIGINT AS missing
        FROM temp.main.stored_flow
        WHERE hook IN (0, list_position(getvariable('hook_names'), hook_name) - 1)
            AND coalesce(t_begin <= coalesce(t_to, getvariable('window_to')), true)
            AND coalesce(t_end >= coalesce(t_from, getvariable('window_from')), true)
    ) AS f,
    (
        SELECT coalesce(bool_and(counted), true) AS known, coalesce(sum(rows), 0)::BIGINT AS missing
        FROM temp.main.stored_gone
        WHERE coalesce(t_begin <= coalesce(t_to, getvariable('window_to')), true)
            AND coalesce(t_end >= coalesce(t_from, getvariable('window_from')), true)
    ) AS g
)
