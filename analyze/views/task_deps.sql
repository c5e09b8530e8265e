-- table: task_deps
-- reads: task_deps
-- coverage: none
--
SELECT * FROM stored_task_deps
