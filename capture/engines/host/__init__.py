"""The host engine: the task graph in deterministic virtual time, on a CPU."""
