-- table: intervals
-- reads: intervals
-- coverage: intervals
--
SELECT * FROM stored_intervals
