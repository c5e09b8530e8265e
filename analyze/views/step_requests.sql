-- table: step_requests
-- reads: step_requests
-- coverage: host_ring
--
SELECT * FROM stored_step_requests
