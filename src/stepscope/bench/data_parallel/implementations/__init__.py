"""Data parallelism, one way per file: the same gradients by different exchanges."""
