-- table: hooks
-- reads: hooks
-- coverage: none
--
SELECT * FROM stored_hooks
