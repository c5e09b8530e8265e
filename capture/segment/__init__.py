"""The shared-memory file between an engine and everyone else (design §5)."""
