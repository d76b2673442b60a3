"""Pictures of results as SVG: benchmarks, calibrations, scaling."""
