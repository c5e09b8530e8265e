-- call: selection_of(emitters)
-- returns: VARCHAR
-- meaning: What a row stands for that the programs in the bits of `emitters` (the column `by` of events) emitted: all,
--   sampled(1/n) or escalated(program); of several the first in that order.
-- reads: programs
--
CASE
    WHEN emitters & getvariable('all_programs') <> 0 THEN 'all'
    WHEN emitters & getvariable('sampled_programs') <> 0 THEN getvariable('selections')[bit_count(
        (emitters & getvariable('sampled_programs') & -(emitters & getvariable('sampled_programs'))) - 1) + 1]
    ELSE getvariable('selections')[bit_count((emitters & -emitters) - 1) + 1]
END
