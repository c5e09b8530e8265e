"""The shared-memory file between an engine and everyone else."""
