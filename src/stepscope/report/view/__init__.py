"""A run as web pages on this machine: the report, the raw tables, the timeline in Perfetto."""
