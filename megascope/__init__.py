"""Megascope: record, keep and question what happens inside a persistent GPU megakernel."""

__version__ = "0.1.0"
