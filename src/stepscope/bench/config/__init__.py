"""Settings of benchmarks and trainings: sections and fields with their limits, read from a file, changed on the
command line."""
