-- table: static_tasks
-- reads: static_tasks
-- coverage: none
--
SELECT * FROM stored_static_tasks
