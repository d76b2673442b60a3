"""Names by which jobs and scripts know modules of the laboratory: `python -m stepscope.bench.trainer`."""
