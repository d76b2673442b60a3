"""Data parallelism, several ways, side by side: the same gradients by different exchanges, each in one small file."""
