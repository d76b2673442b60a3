"""Which collectives a rank ran, with group and bytes: from NCCL's records and kernels (`from_kernels`), or from gloo's
threads and the flight recorder."""
