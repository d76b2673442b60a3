"""In the job: data-parallel implementations side by side, workloads, sweeps and scaling runs."""
