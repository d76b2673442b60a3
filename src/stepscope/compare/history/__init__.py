"""Runs over time: a row per run, what differs by commit, configuration and host, the newest against those before it."""
