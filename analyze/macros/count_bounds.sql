-- call: count_bounds(observed, eligible)
-- returns: STRUCT("low" BIGINT, high BIGINT)
-- meaning: Between which numbers a count lies of which `observed` were recorded and `eligible` happened; `high` is
--   null where that is not known. What was lost has no class or request: of a filtered count, `eligible` is what was
--   observed and all that is missing in its range.
--
{
    'low': observed::BIGINT,
    -- greatest() would pass over a null.
    'high': CASE WHEN eligible IS NOT NULL THEN greatest(observed::BIGINT, eligible::BIGINT) END
}
