-- table: workers
-- reads: workers
-- coverage: none
--
SELECT * FROM stored_workers
