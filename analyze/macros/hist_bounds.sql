-- call: hist_bounds(lower, counts, q, m)
-- returns: STRUCT("low" DOUBLE, high DOUBLE, low_open BOOLEAN, high_open BOOLEAN, observed BIGINT, refused VARCHAR)
-- meaning: As `quantile_bounds`, of a histogram of a program's map (see `hist_quantile`): between which values the
--   quantile `q` of all events lies, of which the share `m` was not observed (throttled, lost or faulted). The ends of
--   the buckets are given, so that the true value is within them.
--
list_transform(
    list_transform(
        [{
            'n': coalesce(list_sum(counts), 0)::BIGINT,
            'buckets': list_sort(list_zip("lower", counts)),
            'q': CASE WHEN q BETWEEN 0 AND 1 THEN q::DOUBLE END,
            'm': CASE WHEN m BETWEEN 0 AND 1 - 1e-9 THEN m::DOUBLE END
        }],
        lambda h: {
            'n': h.n, 'buckets': h.buckets,
            'k': ceil(h.n * h.m / (1 - h.m) - 1e-6)::BIGINT,
            'j': CASE WHEN h.m IS NOT NULL
                THEN greatest(1, ceil(h.q * (h.n + ceil(h.n * h.m / (1 - h.m) - 1e-6)) - 1e-9)::BIGINT) END,
            'refused': CASE
                WHEN h.q IS NULL THEN 'a quantile lies between 0 and 1'
                WHEN h.n = 0 THEN 'nothing was observed'
                WHEN h.q > 0 AND h.q < 1 AND least(h.q, 1 - h.q) < 0.0101 AND h.n * least(h.q, 1 - h.q) < 10 - 1e-9
                    THEN printf('%d observed are too few', h.n)
            END
        }
    ),
    lambda s: {
        'low': CASE WHEN s.refused IS NULL THEN list_reduce(
            list_transform(s.buckets, lambda b: {'edge': b[1], 'left': b[2]}),
            lambda seen, b: CASE
                WHEN seen.left <= 0 THEN seen
                ELSE {'edge': b.edge, 'left': seen.left - b.left}
            END,
            {'edge': NULL::BIGINT, 'left': coalesce(greatest(1, s.j - s.k), 1)}
        ).edge END::DOUBLE,
        'high': CASE WHEN s.refused IS NULL THEN list_transform(
            [list_reduce(
                list_transform(s.buckets, lambda b: {'edge': b[1], 'left': b[2]}),
                lambda seen, b: CASE
                    WHEN seen.left <= 0 THEN seen
                    ELSE {'edge': b.edge, 'left': seen.left - b.left}
                END,
                {'edge': NULL::BIGINT, 'left': coalesce(least(s.n, s.j), s.n)}
            ).edge],
            lambda edge: CASE WHEN edge < 32 THEN edge ELSE edge + (1::BIGINT << (floor(log2(edge))::INTEGER - 4)) - 1 END
        )[1] END::DOUBLE,
        'low_open': s.refused IS NOT NULL OR s.k IS NULL OR s.j <= s.k,
        'high_open': s.refused IS NOT NULL OR s.k IS NULL OR s.j > s.n,
        'observed': s.n,
        'refused': s.refused
    }
)[1]
