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
        [list_sort(list_filter(samples, lambda x: x IS NOT NULL))],
        -- Ranks, not shares: n known and k missing, so that the quantile of all n + k is the one of rank j.
        lambda known: {
            'known': known,
            'n': len(known),
            'k': CASE WHEN m < 1
                THEN len(samples) - len(known) + ceil(len(samples) * m / (1 - m) - 1e-6)::BIGINT END,
            'j': CASE WHEN m < 1
                THEN greatest(1, ceil(q * (len(samples) + ceil(len(samples) * m / (1 - m) - 1e-6)) - 1e-9))::BIGINT END
        }
    ),
    lambda s: CASE
        WHEN q IS NULL OR q < 0 OR q > 1 OR isnan(q) THEN {
            'low': NULL::DOUBLE, 'high': NULL::DOUBLE, 'low_open': true, 'high_open': true, 'observed': s.n,
            'refused': 'a quantile lies between 0 and 1'
        }
        WHEN s.n = 0 THEN {
            'low': NULL::DOUBLE, 'high': NULL::DOUBLE, 'low_open': true, 'high_open': true, 'observed': s.n,
            'refused': 'nothing was observed'
        }
        WHEN least(q, 1 - q) <= 0.01 + 1e-9 AND s.n * least(q, 1 - q) < 10 - 1e-9 AND q > 0 AND q < 1 THEN {
            'low': NULL::DOUBLE, 'high': NULL::DOUBLE, 'low_open': true, 'high_open': true, 'observed': s.n,
            'refused': printf('%d observed are too few', s.n)
        }
        ELSE {
            'low': s.known[coalesce(greatest(1, s.j - s.k), 1)]::DOUBLE,
            'high': s.known[coalesce(least(s.n, s.j), s.n)]::DOUBLE,
            'low_open': coalesce(s.j - s.k < 1, true),
            'high_open': coalesce(s.j > s.n, true),
            'observed': s.n,
            'refused': NULL::VARCHAR
        }
    END
)[1]
