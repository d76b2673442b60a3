"""Statistics of benchmarks: step times with their intervals, scaling, sweeps. They read results folders and never
see a run."""
