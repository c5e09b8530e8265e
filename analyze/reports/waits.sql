-- meaning: What workers wait for, by kind and by the class of the task in hand.
-- column: kind VARCHAR: work (of a worker that has none), data, communication, resource, control
-- column: class VARCHAR: class of the task in hand; null for work
-- column: selection VARCHAR: what its rows stand for: only of all events is there a distribution
-- column: waits STRUCT [waits]: that ended in the window
-- column: wait_ms DOUBLE [ms]: time of those recorded with both ends
-- column: p50 STRUCT [ns]: half of them last no longer; between low and high, open where missing ones may lie beyond
-- column: p99 STRUCT [ns]: … 99 of 100
-- column: worst_dep VARCHAR: the dependency that was waited for longest in all
--
WITH lost AS (SELECT missing_rows('resume', NULL, NULL) AS resumes),
ended AS (SELECT * FROM waits WHERE t_end >= window_begin() AND t_end < window_end()),
by_dep AS (SELECT kind, class, selection, dep_name, sum(ns) AS ns FROM ended GROUP BY kind, class, selection, dep_name),
worst AS (SELECT kind, class, selection, arg_max(dep_name, ns) AS dep FROM by_dep GROUP BY kind, class, selection),
-- Counted, not listed: durations are whole ticks, so that of all waits' only thousands differ.
lengths AS (SELECT kind, class, selection, ns, count(*) AS n FROM ended GROUP BY kind, class, selection, ns),
counted AS (
    SELECT
        kind, class, selection, sum(n)::BIGINT AS waits, sum(ns::HUGEINT * n) AS ns,
        list({'value': ns, 'upto': upto} ORDER BY upto) FILTER (WHERE selection = 'all') AS lengths
    FROM (
        SELECT *, sum(n) OVER (PARTITION BY kind, class, selection ORDER BY ns ASC NULLS LAST)::BIGINT AS upto
        FROM lengths
    ) GROUP BY kind, class, selection
)
SELECT
    c.kind,
    c.class,
    c.selection,
    CASE WHEN c.selection = 'all' THEN count_bounds(c.waits, c.waits + l.resumes)
        ELSE count_bounds(c.waits, NULL) END AS waits,
    c.ns / 1e6 AS wait_ms,
    CASE WHEN c.selection = 'all' THEN counted_bounds(c.lengths, 0.5, l.resumes / (c.lengths[-1].upto + l.resumes))
        ELSE no_population(c.selection) END AS p50,
    CASE WHEN c.selection = 'all' THEN counted_bounds(c.lengths, 0.99, l.resumes / (c.lengths[-1].upto + l.resumes))
        ELSE no_population(c.selection) END AS p99,
    w.dep AS worst_dep
FROM lost AS l, counted AS c LEFT JOIN worst AS w
    ON c.kind IS NOT DISTINCT FROM w.kind AND c.class IS NOT DISTINCT FROM w.class
        AND c.selection IS NOT DISTINCT FROM w.selection
ORDER BY c.ns DESC NULLS LAST, c.kind, c.class
