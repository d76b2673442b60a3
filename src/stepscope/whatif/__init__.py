"""The step time under changed settings."""
