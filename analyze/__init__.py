"""Questions asked of a trace, in SQL."""
