"""In the job: steps and regions are timed, a window is profiled, and a helper process writes the run folder.

Needs torch and the standard library only, works from PYTHONPATH alone, and never disturbs training: on any
trouble it says so once and switches itself off. On the training path are `step_recorder`, `steps/` and `hooks/`;
everything slow is in the helper process or on a background thread.

    config, session    settings; the recorder of one process, from its start to its end
    step_recorder      what it does with regions and steps; watched_steps: which of them a profiler watches
    steps/             every step timed: regions, evaluation, the device's time, the log
    window/            the profiled window: schedule, budget, Kineto, the watchdog
    after_window       FLOPs of one step, and the lines of another's operators: owners/
    hooks/             steps and regions found in an unmodified script
    collectives/ memory/ samplers/    what else is measured, in the window and beside the steps
    helper/            the way out: handover, outbox, the writer process, run.json
    live/              while the job runs: windows that are asked for, stalls, metrics for Prometheus and OpenTelemetry
    launch/            `stepscope record`: the recorder put into a job without a change of code
    trial/             `stepscope tune`: settings put in from outside, results kept, the job ended after N steps
    track/             while training runs: late ranks, throughput, alerts, sent to TensorBoard, W&B, MLflow
    rank, strategy, facts             who and where this process is, and what the job is
    profile, annotate, quick_check    for users: stepscope.profile, stepscope.region
"""
