"""The profiled window: opened and closed by step number, within a budget, with one profiler at a time."""
