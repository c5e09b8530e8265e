-- table: tiles
-- reads: tiles, task_classes, derivation
-- coverage: rows
-- column: t_begin BIGINT [ns]: begin of the first slice
-- column: t_end BIGINT [ns]: end of the last
-- column: class VARCHAR: name of the class with the most time in it
-- column: selection VARCHAR: what the counted events stand for: all, sampled(1/n) or escalated(program)
--
SELECT
    *,
    tile << level AS t_begin,
    (tile + span) << level AS t_end,
    CASE WHEN top_class >= 0 THEN getvariable('class_names')[top_class::BIGINT + 1] END AS class,
    getvariable('derived_selection') AS selection
FROM stored_tiles
