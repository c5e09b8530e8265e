-- call: clock_inside(t)
-- returns: BIGINT
-- meaning: Device time `t`, within the span of the trace's clock fits, since the first of them. For `utc`.
-- reads: clock
--
greatest(least(t, getvariable('clock_end')), getvariable('clock_begin')) - getvariable('clock_begin')
