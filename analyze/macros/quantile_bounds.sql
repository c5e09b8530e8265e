-- call: quantile_bounds(samples, q, m)
-- returns: STRUCT("low" DOUBLE, high DOUBLE, low_open BOOLEAN, high_open BOOLEAN, observed BIGINT, refused VARCHAR)
-- meaning: Between which values the quantile `q` of a population lies of which the list `samples` was recorded and the
--   share `m` is missing: the observed quantiles at max(0, (q - m) / (1 - m)) and min(1, q / (1 - m)). `low_open` and
--   `high_open` say that missing ones may lie below the least or above the greatest observed, which are then given.
--   A null in the list is one that is missing as well. Without any observed, and for a p99 (p1, p99.9 …) of so few
--   that less than ten lie beyond it (of less than 1,000), both are null and `refused` says why.
--
list_transform(
    list_transform(
        [{
            -- The known values come first, so that nothing has to be taken out.
            'sorted': list_sort(samples, 'ASC', 'NULLS LAST'), 'listed': len(samples), 'n': list_count(samples),
            'q': CASE WHEN q BETWEEN 0 AND 1 THEN q::DOUBLE END,
            'lost': CASE WHEN m BETWEEN 0 AND 1 - 1e-9 THEN ceil(len(samples) * m / (1 - m) - 1e-6)::BIGINT END
        }],
        -- Ranks, not shares: of n known and k missing values, the quantile of all is the one of rank j.
        lambda s: {
            'sorted': s.sorted, 'n': coalesce(s.n::BIGINT, 0), 'k': s.lost + s.listed - s.n::BIGINT,
            -- greatest() would pass over a null.
            'j': CASE WHEN s.lost IS NOT NULL THEN greatest(1, ceil(s.q * (s.lost + s.listed) - 1e-9)::BIGINT) END,
            'refused': CASE
                WHEN s.q IS NULL THEN 'a quantile lies between 0 and 1'
                WHEN coalesce(s.n, 0) = 0 THEN 'nothing was observed'
                WHEN s.q > 0 AND s.q < 1 AND least(s.q, 1 - s.q) < 0.0101 AND s.n * least(s.q, 1 - s.q) < 10 - 1e-9
                    THEN printf('%d observed are too few', s.n)
            END
        }
    ),
    lambda s: {
        'low': CASE WHEN s.refused IS NULL THEN s.sorted[coalesce(greatest(1, s.j - s.k), 1)] END::DOUBLE,
        'high': CASE WHEN s.refused IS NULL THEN s.sorted[coalesce(least(s.n, s.j), s.n)] END::DOUBLE,
        'low_open': s.refused IS NOT NULL OR s.k IS NULL OR s.j <= s.k,
        'high_open': s.refused IS NOT NULL OR s.k IS NULL OR s.j > s.n,
        'observed': s.n,
        'refused': s.refused
    }
)[1]
