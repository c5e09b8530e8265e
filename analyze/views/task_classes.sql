-- table: task_classes
-- reads: task_classes
-- coverage: none
--
SELECT * FROM stored_task_classes
