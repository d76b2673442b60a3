"""Names and commands of guides to distributed profiling, and what does their work here.

`docs/lab/guides.md` shows them; the error of an unknown `stepscope.<name>` has what replaces it. Standard library only.
"""

#: classes and functions that `stepscope` has under the guides' names
SAME = (
    "ABProfiler",
    "BottleneckAnalyzer",
    "CollectiveTimePredictor",
    "CommunicationProfiler",
    "DDPProfiler",
    "DistributedProfiler",
    "MemoryProfiler",
    "NVTXAnnotatedModule",
    "OverlapEfficiencyTracker",
    "OverlapProfiler",
    "PPProfiler",
    "PerformanceTracker",
    "ProfiledAllReduce",
    "StragglerDetector",
    "TPProfiler",
    "Trainer",
    "ZeROProfiler",
    "align_timelines",
    "annotate_model",
    "calculate_comm_efficiency",
    "calculate_hfu",
    "calculate_mfu",
    "calibrate_alpha_beta",
    "count_flops_per_token",
    "detect_stragglers",
    "diagnose_low_mfu",
    "diagnose_memory_pressure",
    "diagnose_slow_communication",
    "measure_alpha_beta",
    "measure_mfu",
    "memory_breakdown",
    "plot_calibration",
    "profile_distributed_training",
    "profile_training_step",
    "quick_health_check",
)

#: classes, functions and exercises that another name or a command replaces
INSTEAD = {
    "ModelConfig": "stepscope.count_flops_per_token, which takes any object with these attributes",
    "analyze_memory_breakdown": "`stepscope predict memory`",
    "benchmark_bucket_size": "`stepscope bench buckets --sizes-mb 1,25,100,250`",
    "run_bucket_optimization": "`stepscope bench buckets`",
    "run_calibration": "`stepscope calibrate --plot FILE`",
    "run_memory_profiling": "`stepscope record --memory`, then `stepscope memory RUN`",
    "run_mfu_measurement": "`stepscope report RUN`, which has MFU; stepscope.measure_mfu",
    "run_overlap_profiling": "`stepscope bench ddp`; stepscope.OverlapProfiler",
    "run_straggler_detection": "`stepscope bench straggler`",
    "simulate_straggler": "`stepscope bench straggler --slow-rank 3 --delays-ms 50`",
    "tensorboard_trace_handler": "stepscope.profile(out=...); `stepscope export RUN --tensorboard DIR`",
}

#: commands, variables and tools
COMMANDS = {
    "nsys profile ... python train.py": "stepscope record --nsys -- python train.py",
    "nsys export, nsys-ui": "stepscope report trace.nsys-rep",
    "ncu --set full python train.py": "stepscope record --ncu -- python train.py",
    "hta trace_analyzer --trace_dir DIR": "stepscope report DIR",
    "chrome://tracing": "stepscope export RUN --perfetto FILE",
    "tensorboard --logdir DIR": "stepscope export RUN --tensorboard DIR",
    "prof.key_averages().table(...)": "stepscope ops RUN",
    "nvidia-smi": "stepscope health RUN",
    "python -m memory_profiler train.py": "stepscope record --memory -- python train.py",
    "torch.cuda.memory._snapshot()": "stepscope memory FILE",
    "export NCCL_DEBUG=INFO": "stepscope record --nccl-log -- COMMAND; stepscope import LOG --into RUN",
    "export TORCH_DISTRIBUTED_DEBUG=DETAIL": "stepscope record --debug distributed-detail -- COMMAND",
    "export TORCH_COMPILE_DEBUG=1": "stepscope record --debug compile -- COMMAND",
    "export PYTORCH_CUDA_ALLOC_CONF=...": "stepscope bench allocator",
    "run_benchmark.py (TorchBench)": "stepscope bench ddp --workload torchbench:MODEL",
    "python benchmark_ddp.py --profile ...": "stepscope bench ddp --profile ...",
    "the five-step investigation": "stepscope investigate RUN",
}
