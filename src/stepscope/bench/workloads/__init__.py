"""What can be trained in a benchmark, one file each with `build(spec, device, argument) -> Workload`."""
