-- call: counted_bounds(samples, q, m)
-- returns: STRUCT("low" DOUBLE, high DOUBLE, low_open BOOLEAN, high_open BOOLEAN, observed BIGINT, refused VARCHAR)
-- meaning: What `quantile_bounds` gives, of values that were counted instead of listed: `samples` has a
--   {'value', 'upto'} for each value that occurred, in ascending order (null last): how many were no greater than it.
--   Of millions of durations only thousands differ, and counting them takes less time and memory than sorting them.
-- calls: quantile_ranks
--
list_transform(
    [{
        'counted': samples,
        'ranks': quantile_ranks(
            list_filter(samples, lambda s: s.value IS NOT NULL)[-1].upto, samples[-1].upto, q, m
        )
    }],
    lambda c: {
        'low': list_filter(c.counted, lambda s: s.upto >= c.ranks.low)[1].value::DOUBLE,
        'high': list_filter(c.counted, lambda s: s.upto >= c.ranks.high)[1].value::DOUBLE,
        'low_open': c.ranks.low_open,
        'high_open': c.ranks.high_open,
        'observed': c.ranks.observed,
        'refused': c.ranks.refused
    }
)[1]
