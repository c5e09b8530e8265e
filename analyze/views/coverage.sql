-- table: coverage
-- reads: coverage, programs
-- coverage: intervals
-- column: hook_name VARCHAR: name of the hook
-- column: program_name VARCHAR: name of the program
-- column: selection VARCHAR: what the program's rows are: all, sampled(1/n) or escalated(program)
-- column: covered DOUBLE: observed / eligible; null where nothing was eligible, and where the interval is open
--
SELECT
    c.*,
    CASE WHEN c.hook >= 0 THEN getvariable('hook_names')[c.hook::BIGINT + 1] END AS hook_name,
    p.name AS program_name,
    p.selection,
    CASE WHEN c.closed AND c.eligible > 0 THEN c.observed / c.eligible END AS covered
FROM stored_coverage AS c LEFT JOIN stored_programs AS p USING (program)
