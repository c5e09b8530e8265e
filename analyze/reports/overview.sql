-- meaning: What the trace stands for, what it holds, and where its time went: selection, coverage and loss first.
-- column: section VARCHAR: selection, coverage, loss, trace, marks, work, latency, classes, waits
-- column: item VARCHAR: what about it
-- column: value VARCHAR: as text, with its unit
-- column: bounds STRUCT: of a quantile: the values between which it lies, in ns
--
WITH lost AS (
    SELECT
        missing_rows('complete', NULL, NULL) AS completes, missing_rows('request', NULL, NULL) AS requests,
        missing_rows('step', NULL, NULL) AS steps
),
eligible AS (
    -- By number: several programs may have had a name, one after the other.
    SELECT
        program, any_value(selection) AS selection, sum(eligible) AS eligible, sum(written) AS written,
        sum(observed) AS observed, sum(emitted) AS emitted,
        count(*) FILTER (WHERE NOT closed) AS open, count(DISTINCT epoch) AS epochs, min(epoch) AS first_epoch,
        max(epoch + epochs - 1) AS last_epoch, covered(window_begin(), window_end() - 1) AS covered
    FROM coverage GROUP BY program
),
named AS (
    SELECT
        program, selection,
        CASE WHEN count(*) OVER (PARTITION BY name) > 1 THEN printf('%s (%d)', name, program) ELSE name END AS item
    FROM programs
),
done AS (
    SELECT count(*) AS tasks, sum(exec_ns) AS exec_ns FROM tasks
    WHERE complete >= window_begin() AND complete < window_end() AND selection = 'all'
),
by_class AS (
    SELECT class, CASE WHEN min(selection) <> 'all' THEN '≥ ' ELSE '' END AS least, count(*) AS tasks,
        sum(exec_ns) AS exec_ns,
        row_number() OVER (ORDER BY sum(exec_ns) DESC NULLS LAST, class) AS place
    FROM tasks WHERE complete >= window_begin() AND complete < window_end() GROUP BY class
),
by_kind AS (
    SELECT *, row_number() OVER (ORDER BY ns DESC NULLS LAST, kind) AS place
    FROM (
        SELECT
            kind, CASE WHEN min(selection) <> 'all' THEN '≥ ' ELSE '' END AS least,
            count(*) FILTER (WHERE t_end >= window_begin() AND t_end < window_end()) AS waits,
            count(*) FILTER (WHERE open) AS still_open,
            -- In the window alone, as in the report waits.
            sum(greatest(least(coalesce(t_end, window_end()), window_end()) - greatest(t_begin, window_begin()), 0))
                FILTER (WHERE open OR ns IS NOT NULL) AS ns
        FROM waits GROUP BY kind
    )
),
served AS (
    SELECT
        count(*) FILTER (WHERE state IS NOT NULL) AS requests, min(selection) AS selection, list(ttft_ns) FILTER (WHERE selection = 'all') AS ttft,
        list(per_token_ns) FILTER (WHERE selection = 'all' AND tokens > 1) AS per_token
    FROM requests
    -- One without any event never began, or all of them were lost.
    WHERE state IS NOT NULL OR missing_rows('request', arrival, 9223372036854775807) IS DISTINCT FROM 0
),
stepped AS (
    SELECT count(*) AS steps, min(selection) AS selection, list(ns) FILTER (WHERE told AND selection = 'all') AS lengths
    FROM steps
),
latency AS (
    SELECT
        s.requests, t.steps, CASE WHEN s.selection <> 'all' THEN '≥ ' ELSE '' END AS least_requests,
        CASE WHEN t.selection <> 'all' THEN '≥ ' ELSE '' END AS least_steps,
        CASE WHEN coalesce(s.selection, 'all') <> 'all' THEN no_population(s.selection)
            ELSE quantile_bounds(s.ttft, 0.5, l.requests / (len(s.ttft) + l.requests)) END AS ttft_p50,
        CASE WHEN coalesce(s.selection, 'all') <> 'all' THEN no_population(s.selection)
            ELSE quantile_bounds(s.ttft, 0.99, l.requests / (len(s.ttft) + l.requests)) END AS ttft_p99,
        CASE WHEN coalesce(s.selection, 'all') <> 'all' THEN no_population(s.selection)
            ELSE quantile_bounds(s.per_token, 0.5, l.requests / (len(s.per_token) + l.requests)) END AS per_token_p50,
        CASE WHEN coalesce(t.selection, 'all') <> 'all' THEN no_population(t.selection)
            ELSE quantile_bounds(t.lengths, 0.5, l.steps / (len(t.lengths) + l.steps)) END AS step_p50,
        CASE WHEN coalesce(t.selection, 'all') <> 'all' THEN no_population(t.selection)
            ELSE quantile_bounds(t.lengths, 0.99, l.steps / (len(t.lengths) + l.steps)) END AS step_p99
    FROM lost AS l, served AS s, stepped AS t
),
pointed AS (SELECT *, row_number() OVER (ORDER BY mark) AS place FROM marks),
facts AS (
    SELECT
        10 AS part, p.program AS nth, 'selection' AS section, p.item,
        CASE WHEN p.selection <> 'all' AND e.emitted = 0 THEN 'no rows: maps alone' ELSE p.selection END AS value,
        NULL AS bounds
    FROM named AS p LEFT JOIN eligible AS e ON p.program = e.program
    UNION ALL
    SELECT
        20, e.program, 'coverage', coalesce(p.item, printf('program %d', e.program)),
        CASE
            WHEN e.open > 0 THEN printf('unknown: %d intervals are open; %d events observed', e.open, e.observed::BIGINT)
            WHEN e.eligible > 0 AND e.selection <> 'all' THEN printf(
                '%.2f %%: %d of %d eligible events observed, of %s', floor(1e4 * e.observed / e.eligible) / 100,
                e.observed::BIGINT, e.eligible::BIGINT, CASE WHEN e.first_epoch = e.last_epoch
                    THEN printf('epoch %d', e.first_epoch)
                    ELSE printf('epochs %d to %d', e.first_epoch, e.last_epoch) END)
                || CASE WHEN e.emitted > 0 THEN printf(', %d rows written', e.written::BIGINT) ELSE '' END
            WHEN e.eligible > 0 AND (e.covered IS NULL OR l.completes IS NULL) THEN printf(
                'unknown: not all of it was closed or counted; %d of %d eligible events written in what was',
                e.written::BIGINT, e.eligible::BIGINT)
            WHEN e.eligible > 0 THEN printf(
                '%.2f %%: %d of %d eligible events written and here', floor(1e4 * e.covered) / 100,
                round(e.covered * e.eligible)::BIGINT, e.eligible::BIGINT)
            ELSE 'nothing was eligible'
        END, NULL
    FROM lost AS l, eligible AS e LEFT JOIN named AS p ON p.program = e.program
    UNION ALL
    SELECT 21, 0, 'coverage', 'recording', 'unknown: no interval was closed', NULL
    FROM (SELECT count(*) AS n FROM eligible) WHERE n = 0
    UNION ALL
    SELECT 30, 0, 'loss', kind, printf('%d %s (%s): %s', sum("count")::BIGINT, unit, severity, todo), NULL
    FROM loss GROUP BY kind, unit, severity, todo
    UNION ALL
    SELECT 31, 0, 'loss', 'any', 'none is known', NULL FROM (SELECT count(*) AS n FROM loss) WHERE n = 0
    UNION ALL
    SELECT 40, 1, 'trace', 'name', name, NULL FROM trace
    UNION ALL
    SELECT 40, 2, 'trace', 'state', state || coalesce(' (' || end_reason || ')', ''), NULL FROM trace
    UNION ALL
    SELECT 40, 3, 'trace', 'window', printf('%.3f ms from %d', (window_end() - window_begin()) / 1e6, window_begin()), NULL
    WHERE window_begin() IS NOT NULL
    UNION ALL
    SELECT 40, 4, 'trace', 'epochs', printf('%d, from %d to %d', max(epochs), min(first_epoch), max(last_epoch)), NULL
    FROM eligible HAVING count(*) > 0
    UNION ALL
    SELECT
        45, mark, 'marks', left(text, 60), printf(
            '%s at %d', CASE WHEN kind = 'trigger' THEN printf('%d firings, first', firings) ELSE 'note' END, t)
        || CASE WHEN t_from IS NULL THEN '' ELSE printf(': rows kept from %d to %d', t_from, t_to) END, NULL
    FROM pointed WHERE place <= 20
    UNION ALL
    SELECT 46, 0, 'marks', 'more', printf('%d: see the view marks', count(*)), NULL
    FROM pointed WHERE place > 20 HAVING count(*) > 0
    UNION ALL
    SELECT
        50, 1, 'work', 'tasks', CASE
            WHEN l.completes IS NULL THEN printf('%d or more', d.tasks)
            WHEN l.completes = 0 THEN printf('%d', d.tasks)
            ELSE printf('%d … %d', d.tasks, d.tasks + l.completes) END, NULL
    FROM done AS d, lost AS l
    UNION ALL
    SELECT 50, 2, 'work', 'requests', printf('%s%d', least_requests, requests), NULL FROM latency
    UNION ALL
    SELECT 50, 3, 'work', 'steps', printf('%s%d', least_steps, steps), NULL FROM latency
    UNION ALL
    SELECT 60, 1, 'latency', 'time to first token, p50', NULL, ttft_p50 FROM latency
    UNION ALL
    SELECT 60, 2, 'latency', 'time to first token, p99', NULL, ttft_p99 FROM latency
    UNION ALL
    SELECT 60, 3, 'latency', 'time per token, p50', NULL, per_token_p50 FROM latency
    UNION ALL
    SELECT 60, 4, 'latency', 'step, p50', NULL, step_p50 FROM latency
    UNION ALL
    SELECT 60, 5, 'latency', 'step, p99', NULL, step_p99 FROM latency
    UNION ALL
    SELECT 70, place, 'classes', class, printf('%s%d tasks, %.3f ms', least, tasks, coalesce(exec_ns, 0) / 1e6), NULL
    FROM by_class WHERE place <= 5
    UNION ALL
    SELECT 80, place, 'waits', kind, printf('%s%d waits, %.3f ms', least, waits, coalesce(ns, 0) / 1e6)
        || CASE WHEN still_open > 0 THEN printf(', %d not ended', still_open) ELSE '' END, NULL
    FROM by_kind
)
SELECT section, item, value, bounds FROM facts ORDER BY part, nth, item
