"""Everything that touches a running engine."""
