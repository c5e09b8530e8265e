-- table: dependencies
-- reads: dependencies
-- coverage: none
--
SELECT * FROM stored_dependencies
