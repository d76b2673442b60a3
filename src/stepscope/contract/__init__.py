"""What both sides rely on, standard library only: the job writes by it, the desk reads by it, no fact stands twice.

    run_folder, run_json, step_line, owners    the files of a run folder: their names, and what is in them
    live                                       what is said in it while the job runs: windows asked for, stalls
    alarms, late_ranks                         what is wrong with a running job, and since when; who is late
    regions, collectives, precisions, flops    names in a trace and what they mean; FLOPs of operators
    workload, tensorboard                      defaults of the benchmarks' model; TensorBoard's records

`tests/contract/test_facts_stand_once.py` fails where one of its facts is written down a second time.
"""
