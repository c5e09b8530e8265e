-- call: utc(t)
-- returns: TIMESTAMP_NS
-- meaning: The host's clock (UTC) at device time `t`, from the trace's clock fits; null without fits.
-- reads: clock
-- calls: clock_cell, clock_inside
--
make_timestamp_ns(
    t + getvariable('clock_base') + getvariable('clock_offsets')[clock_cell(t) + 1] + round(
        (getvariable('clock_offsets')[clock_cell(t) + 2] - getvariable('clock_offsets')[clock_cell(t) + 1])
        * ((clock_inside(t) - clock_cell(t) * getvariable('clock_width'))::DOUBLE / getvariable('clock_width'))
    )::BIGINT
)
