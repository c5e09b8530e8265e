-- call: clock_cell(t)
-- returns: BIGINT
-- meaning: Which of the equal cells between the trace's first and last clock fit holds device time `t`. For `utc`.
-- reads: clock
-- calls: clock_inside
--
least(clock_inside(t) // getvariable('clock_width'), getvariable('clock_cells') - 1)
