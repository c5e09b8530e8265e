-- table: programs
-- reads: programs
-- coverage: none
--
SELECT * FROM stored_programs
