-- call: utc_error_ns(t)
-- returns: BIGINT
-- meaning: `utc(t)` is within this of the host's clock (ns); null outside the clock fits, where it is not bounded.
-- reads: clock
-- calls: clock_cell
--
CASE WHEN t BETWEEN getvariable('clock_begin') AND getvariable('clock_end')
    THEN getvariable('clock_errors')[clock_cell(t) + 1] END
