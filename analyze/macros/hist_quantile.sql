-- call: hist_quantile(lower, counts, q)
-- returns: DOUBLE
-- meaning: The quantile `q` of a histogram of a program's map (columns `lower` and `counts`; of several rows
--   `flatten(list("lower"))` and `flatten(list(counts))`): the middle of the bucket in which it lies, off by at most
--   3.125 %. Null without values, and for a p99 (p1, p99.9 …) of so few that less than ten lie beyond it.
--
list_transform(
    [{
        'n': list_sum(counts)::BIGINT,
        'buckets': list_sort(list_zip("lower", counts)),
        'q': CASE WHEN q BETWEEN 0 AND 1 THEN q::DOUBLE END
    }],
    lambda h: CASE
        WHEN coalesce(h.n, 0) = 0 OR h.q IS NULL THEN NULL
        WHEN h.q > 0 AND h.q < 1 AND least(h.q, 1 - h.q) < 0.0101 AND h.n * least(h.q, 1 - h.q) < 10 - 1e-9 THEN NULL
        ELSE list_transform(
            [list_reduce(
                list_transform(h.buckets, lambda b: {'edge': b[1], 'left': b[2]}),
                lambda seen, b: CASE
                    WHEN seen.left <= 0 THEN seen
                    ELSE {'edge': b.edge, 'left': seen.left - b.left}
                END,
                {'edge': NULL::BIGINT, 'left': greatest(1, ceil(h.q * h.n - 1e-9)::BIGINT)}
            )],
            -- A bucket from 32 on is a sixteenth of its octave wide.
            lambda found: CASE
                WHEN found.edge < 32 THEN found.edge
                ELSE found.edge + ((1::BIGINT << (floor(log2(found.edge))::INTEGER - 4)) - 1) // 2
            END
        )[1]::DOUBLE
    END
)[1]
