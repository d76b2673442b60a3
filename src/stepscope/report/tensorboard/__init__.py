"""A folder that TensorBoard reads: traces for its profiler plugin, and the account as curves over steps."""
