"""Element types of matrix products by the names that users, configurations and the hardware table share."""

TRAINING_PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
"""what a benchmark or a training can be run in"""
PEAK_PRECISIONS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8")
"""what chips have a peak for"""
