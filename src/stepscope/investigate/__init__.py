"""The guided investigation in five steps, from a baseline to a validated fix, and the detail behind each category."""
