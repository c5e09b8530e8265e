-- table: tile_fields
-- reads: tile_fields
-- coverage: none
--
SELECT * FROM stored_tile_fields
