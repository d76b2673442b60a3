"""In the job: steps and regions are timed, a window is profiled, and a helper process writes the run folder.

Needs torch and the standard library only, works from PYTHONPATH alone, and never disturbs training: on any
trouble it says so once and switches itself off. On the training path are `session`, `regions` and `step_log`;
everything slow is in the helper (`writer`) or on a background thread (`open_run`).

    settings      config, schedule
    recorder      session, regions, step_log, device_timer, undisturbed
    the window    window, kineto, cuda_range, profiler_guard, budget
    after it      after_window, step_census, flops, owners  FLOPs of one step, and the lines of another's operators
    the way out   handover, open_run, outbox  |  writer, trace_file, step_statistics, description
    who and where rank, strategy, groups, facts, claim, agreement, side_channel, clock_probe
    beside steps  samplers, standard_samplers, memory*, telemetry, live_collectives, collective_*, nccl_log
    no code       launch, inject, inject_point, hooks, seen, recorded, outside_tool
    for users     profile (stepscope.profile, stepscope.region), annotate, quick_check
"""
