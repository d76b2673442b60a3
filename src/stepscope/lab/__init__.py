"""The laboratory: try, tune, predict. It imports the profiler, never the other way round."""

COMMANDS = {
    "bench": (
        "benchmark data-parallel implementations and settings",
        "stepscope.lab.cli.bench",
        "stepscope.lab.cli.bench_arguments",
    ),
    "gate": (
        "test a change against its base in interleaved runs",
        "stepscope.lab.cli.gate",
        "stepscope.lab.cli.gate_arguments",
    ),
    "tune": (
        "try settings in interleaved A/B runs, keep what helps",
        "stepscope.lab.cli.tune",
        "stepscope.lab.cli.tune_arguments",
    ),
    "calibrate": ("measure collective bandwidth on this machine", "stepscope.lab.cli.calibrate"),
    "predict": ("estimate step time, memory and FLOPs of other setups", "stepscope.lab.cli.predict"),
}
RESULTS = {"bench": "stepscope.lab.cli.results"}
