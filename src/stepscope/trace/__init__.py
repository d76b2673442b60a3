"""Trace files into tables: one reader per format, and the cache."""
