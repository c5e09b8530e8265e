-- call: covered(t_from, t_to)
-- returns: DOUBLE
-- meaning: The share of the events between two device times that are in the trace, over all hooks and whole intervals
--   that overlap; null where nothing was eligible and where that is not known.
-- reads: flow
--
(
    SELECT CASE WHEN bool_and(closed) AND sum(eligible) > 0 THEN (sum(written) / sum(eligible))::DOUBLE END
    FROM temp.main.stored_flow
    WHERE t_begin <= t_to AND t_end >= t_from
)
