-- table: requests
-- reads: requests
-- coverage: host_ring
--
SELECT * FROM stored_requests
