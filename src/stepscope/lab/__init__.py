"""The laboratory: try, tune, predict. It imports the profiler, never the other way round."""
