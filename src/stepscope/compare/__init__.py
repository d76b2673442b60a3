"""Two runs, or two sets of runs: samples that can be compared, differences with intervals, reports and benchmarks
side by side, and gates for CI."""
