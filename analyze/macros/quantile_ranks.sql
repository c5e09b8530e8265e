-- call: quantile_ranks(known, recorded, q, m)
-- returns: STRUCT("low" BIGINT, high BIGINT, low_open BOOLEAN, high_open BOOLEAN, observed BIGINT, refused VARCHAR)
-- meaning: Between which ranks (from 1) of the `known` values in ascending order the quantile `q` of a population lies of
--   which the share `m` was not recorded, and of the `recorded` ones those beyond `known` without their value. For
--   `quantile_bounds` and `counted_bounds`, which say what the rest means.
--
list_transform(
    list_transform(
        [{
            'listed': recorded, 'n': coalesce(known::BIGINT, 0), 'q': CASE WHEN q BETWEEN 0 AND 1 THEN q::DOUBLE END,
            'lost': CASE WHEN m BETWEEN 0 AND 1 - 1e-9 THEN ceil(recorded * m / (1 - m) - 1e-6)::BIGINT END
        }],
        -- Ranks, not shares: of n known and k missing values, the quantile of all is the one of rank j.
        lambda s: {
            'n': s.n, 'k': s.lost + s.listed - s.n,
            -- greatest() would pass over a null.
            'j': CASE WHEN s.lost IS NOT NULL THEN greatest(1, ceil(s.q * (s.lost + s.listed) - 1e-9)::BIGINT) END,
            'refused': CASE
                WHEN s.q IS NULL THEN 'a quantile lies between 0 and 1'
                WHEN s.n = 0 THEN 'nothing was observed'
                WHEN s.q > 0 AND s.q < 1 AND least(s.q, 1 - s.q) < 0.0101 AND s.n * least(s.q, 1 - s.q) < 10 - 1e-9
                    THEN printf('%d observed are too few', s.n)
            END
        }
    ),
    lambda s: {
        'low': CASE WHEN s.refused IS NULL THEN coalesce(greatest(1, s.j - s.k), 1) END::BIGINT,
        'high': CASE WHEN s.refused IS NULL THEN coalesce(least(s.n, s.j), s.n) END::BIGINT,
        'low_open': s.refused IS NOT NULL OR s.k IS NULL OR s.j <= s.k,
        'high_open': s.refused IS NOT NULL OR s.k IS NULL OR s.j > s.n,
        'observed': s.n,
        'refused': s.refused
    }
)[1]
