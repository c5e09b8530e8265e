-- table: loss_kinds
-- reads: loss_kinds
-- coverage: none
--
SELECT * FROM stored_loss_kinds
