-- table: marks
-- reads: marks
-- calls: utc
-- coverage: none
-- column: time TIMESTAMP_NS [UTC]: `t` by the host's clock, from the trace's clock fits; null without fits
--
SELECT *, utc(t) AS time
FROM stored_marks
