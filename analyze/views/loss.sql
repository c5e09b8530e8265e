-- table: loss
-- reads: loss, loss_kinds
-- coverage: loss
-- column: unit VARCHAR: what `count` counts; of a part or a spool file that is gone also of which table
-- column: place VARCHAR: where it happens
-- column: todo VARCHAR: what to do
-- column: hook_name VARCHAR: name of the hook, where it is known
--
SELECT
    l.*,
    k.unit || CASE WHEN l.kind IN ('part_unreadable', 'spool_tail')
        THEN coalesce(' of ' || nullif(replace(regexp_extract(l.detail, getvariable('loss_file'), 1), '/', '.'), ''), '')
        ELSE '' END AS unit,
    k.place, k.todo,
    CASE WHEN l.hook >= 0 THEN getvariable('hook_names')[l.hook::BIGINT + 1] END AS hook_name
FROM stored_loss AS l LEFT JOIN stored_loss_kinds AS k USING (kind)
