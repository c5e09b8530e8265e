-- call: quantile_bounds(samples, q, m)
-- returns: STRUCT("low" DOUBLE, high DOUBLE, low_open BOOLEAN, high_open BOOLEAN, observed BIGINT, refused VARCHAR)
-- meaning: Between which values the quantile `q` of a population lies of which the list `samples` was recorded and the
--   share `m` is missing: the observed quantiles at max(0, (q - m) / (1 - m)) and min(1, q / (1 - m)). `low_open` and
--   `high_open` say that missing ones may lie below the least or above the greatest observed, which are then given.
--   A null in the list is one that is missing as well. Without any observed, and for a p99 (p1, p99.9 …) of so few
--   that less than ten lie beyond it (of less than 1,000), both are null and `refused` says why.
-- calls: quantile_ranks
--
list_transform(
    [{
        -- The known values come first, so that nothing has to be taken out.
        'sorted': list_sort(samples, 'ASC', 'NULLS LAST'),
        'ranks': quantile_ranks(list_count(samples), len(samples), q, m)
    }],
    lambda s: {
        'low': s.sorted[s.ranks.low]::DOUBLE,
        'high': s.sorted[s.ranks.high]::DOUBLE,
        'low_open': s.ranks.low_open,
        'high_open': s.ranks.high_open,
        'observed': s.ranks.observed,
        'refused': s.ranks.refused
    }
)[1]
