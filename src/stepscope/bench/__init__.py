"""In the job: data-parallel implementations side by side, workloads, sweeps and scaling runs, measured properly.

workload, workloads/    what is trained              data_parallel/  how gradients are exchanged, and the jobs
measure, trace, machine on one rank                  sweeps/         one choice at a time
launch, rank            processes and what they say  trainer*, config*  training for users, settings in files
rank_records, results   records of all ranks -> results.json         collectives, simulate*  for `cost`
"""
