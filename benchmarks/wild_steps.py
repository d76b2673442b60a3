"""One training job of a `wild.py` by its own clock: wall time and CPU time of the training thread, step by step.

    python benchmarks/wild_steps.py WILD.py WORKLOAD FAULT STEPS OUT.json

`WILD.py` is any file with `build(workload, fault)`, which returns `step(i)`. Times are noted in lists and written at
the end; nothing waits for the device before that.
"""

import importlib.util
import json
import sys
import time
from itertools import pairwise
from pathlib import Path


def main() -> None:
    wild_py, workload, fault, steps, out = sys.argv[1:6]
    import torch

    spec = importlib.util.spec_from_file_location("wild", wild_py)
    assert spec is not None and spec.loader is not None
    wild = importlib.util.module_from_spec(spec)
    sys.modules["wild"] = wild  # loaders with workers pickle its classes by this name
    spec.loader.exec_module(wild)
    step = wild.build(workload, fault)
    wall_ns, cpu_ns = [time.perf_counter_ns()], [time.thread_time_ns()]
    for i in range(int(steps)):
        step(i)
        wall_ns.append(time.perf_counter_ns())
        cpu_ns.append(time.thread_time_ns())
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    found = {name: [(b - a) / 1e6 for a, b in pairwise(ns)] for name, ns in
             (("wall", wall_ns), ("cpu", cpu_ns))}  # fmt: skip
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
