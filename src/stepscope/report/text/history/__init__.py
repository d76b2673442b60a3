"""Runs over time in a terminal: `page` prints rows, groups, the newest runs and slow hosts."""
