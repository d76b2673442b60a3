"""Which collectives a rank ran, with group and bytes: from NCCL's records and kernels (`of_rank`), or from gloo's
threads and the flight recorder."""
