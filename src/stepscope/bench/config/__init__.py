"""Settings of benchmarks and training runs."""
