-- meaning: What workers wait for, by kind and by the class of the task in hand.
-- column: kind VARCHAR: work (of a worker that has none), data, communication, resource, control
-- column: class VARCHAR: class of the task in hand; null for work
-- column: selection VARCHAR: what its rows stand for: only of all events is there a distribution
-- column: waits STRUCT [waits]: that ended in the window
-- column: wait_ms DOUBLE [ms]: time inside the window, of waits whose ends are both known; of those still open to the window's
--   end
-- column: p50 STRUCT [ns]: half of them last no longer; between low and high, open where missing ones may lie beyond
-- column: p99 STRUCT [ns]: … 99 of 100
-- column: worst_dep VARCHAR: the dependency that was waited for longest in all
--
WITH lost AS (SELECT missing_rows('resume', NULL, NULL) AS resumes),
looked AS (
    SELECT
        kind, class, selection, dep_name, ns, t_end >= window_begin() AND t_end < window_end() AS ended,
        -- One that began before the recording may have lasted longer than the window; one that is open lasts to its end.
        CASE WHEN open OR ns IS NOT NULL
            THEN greatest(least(coalesce(t_end, window_end()), window_end()) - greatest(t_begin, window_begin()), 0)
        END AS inside
    FROM waits
),
by_dep AS (
    SELECT kind, class, selection, dep_name, sum(inside) AS inside
    FROM looked WHERE ended OR inside IS NOT NULL GROUP BY kind, class, selection, dep_name
),
spent AS (
    SELECT kind, class, selection, sum(inside) AS inside, arg_max(dep_name, inside) AS worst_dep
    FROM by_dep GROUP BY kind, class, selection
),
-- Counted, not listed: durations are whole ticks, so that of all waits' only thousands differ.
lengths AS (SELECT kind, class, selection, ns, count(*) AS n FROM looked WHERE ended GROUP BY kind, class, selection, ns),
counted AS (
    SELECT
        kind, class, selection, sum(n)::BIGINT AS waits,
        list({'value': ns, 'upto': upto} ORDER BY upto) FILTER (WHERE selection = 'all') AS lengths
    FROM (
        SELECT *, sum(n) OVER (PARTITION BY kind, class, selection ORDER BY ns ASC NULLS LAST)::BIGINT AS upto
        FROM lengths
    ) GROUP BY kind, class, selection
)
SELECT
    s.kind,
    s.class,
    s.selection,
    CASE WHEN s.selection = 'all' THEN count_bounds(coalesce(c.waits, 0), coalesce(c.waits, 0) + l.resumes)
        ELSE count_bounds(coalesce(c.waits, 0), NULL) END AS waits,
    s.inside / 1e6 AS wait_ms,
    CASE WHEN s.selection = 'all' THEN counted_bounds(c.lengths, 0.5, l.resumes / (c.lengths[-1].upto + l.resumes))
        ELSE no_population(s.selection) END AS p50,
    CASE WHEN s.selection = 'all' THEN counted_bounds(c.lengths, 0.99, l.resumes / (c.lengths[-1].upto + l.resumes))
        ELSE no_population(s.selection) END AS p99,
    s.worst_dep
FROM lost AS l, spent AS s LEFT JOIN counted AS c
    ON s.kind IS NOT DISTINCT FROM c.kind AND s.class IS NOT DISTINCT FROM c.class
        AND s.selection IS NOT DISTINCT FROM c.selection
ORDER BY s.inside DESC NULLS LAST, s.kind, s.class
