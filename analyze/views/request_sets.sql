-- table: request_sets
-- reads: request_sets
-- coverage: host_ring
--
SELECT * FROM stored_request_sets
