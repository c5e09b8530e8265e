"""The trace on disk; knows nothing of devices."""
