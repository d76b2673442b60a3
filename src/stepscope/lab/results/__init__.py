"""Statistics of benchmarks and sweeps."""
