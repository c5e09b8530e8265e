"""eBPF programs: loaded, verified, executed. A program sees one event at a time and keeps its state in bounded maps."""
