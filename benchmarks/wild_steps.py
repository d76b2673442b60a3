"""One training job of a `wild.py` by its own clock, a block of steps at a time, each when it is told to go.

    python benchmarks/wild_steps.py WILD.py WORKLOAD FAULT BLOCKS STEPS_IN_BLOCK SOCKET OUT.json

`WILD.py` is any file with `build(workload, fault)`, which returns `step(i)`. Before each block, when its device has
nothing left to do, the job says `r` on the socket and waits for `g`. Wall time and CPU time of the training thread are
noted in lists, of every step, and written at the end.
"""

import importlib.util
import json
import socket
import sys
import time
from itertools import pairwise
from pathlib import Path


def main() -> None:
    wild_py, workload, fault, blocks, steps, path, out = sys.argv[1:8]
    import torch

    spec = importlib.util.spec_from_file_location("wild", wild_py)
    assert spec is not None and spec.loader is not None
    wild = importlib.util.module_from_spec(spec)
    sys.modules["wild"] = wild  # loaders with workers pickle its classes by this name
    spec.loader.exec_module(wild)
    step = wild.build(workload, fault)
    gate = socket.socket(socket.AF_UNIX)
    gate.connect(path)
    times: dict[str, list[list[float]]] = {"wall": [], "cpu": []}
    for block in range(int(blocks)):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        gate.sendall(b"r")
        if gate.recv(1) != b"g":
            return
        wall_ns, cpu_ns = [time.perf_counter_ns()], [time.thread_time_ns()]
        for i in range(int(steps)):
            step(block * int(steps) + i)
            wall_ns.append(time.perf_counter_ns())
            cpu_ns.append(time.thread_time_ns())
        for name, ns in (("wall", wall_ns), ("cpu", cpu_ns)):
            times[name].append([(b - a) / 1e6 for a, b in pairwise(ns)])
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    gate.sendall(b"r")
    Path(out).write_text(json.dumps(times))


if __name__ == "__main__":
    main()
