"""The terminal workbench: reads through analyze, acts through capture.control."""
