-- call: no_population(selection)
-- returns: STRUCT("low" DOUBLE, high DOUBLE, low_open BOOLEAN, high_open BOOLEAN, observed BIGINT, refused VARCHAR)
-- meaning: What stands in place of bounds (see `quantile_bounds`) of rows that are not all events, by their
--   `selection`: they are no population to take a quantile of.
--
{
    'low': NULL::DOUBLE, 'high': NULL::DOUBLE, 'low_open': true, 'high_open': true, 'observed': 0::BIGINT,
    'refused': coalesce(selection, 'rows of unknown selection') || ' is no population'
}
