"""Simulated jobs (`tests/analyze/simulate.py`) with the owners of what they do: a line for each thing."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.analyze.build import MAIN, RankTrace
from tests.analyze.owners.planted import write_owners
from tests.analyze.simulate import Op, Simulated, simulate

from stepscope.run.load import Run, load


def line_of(index: int) -> int:
    """Return the line at which thing number `index` of a program was called."""
    return 10 + index


def owned_run(folder: Path, *programs: Sequence[Op], modules: Sequence[str] = (), **given: Any) -> Run:
    """Return the run of these programs; thing k of each is called at `train.py:{10 + k}`, in the modules in turn."""
    folder.mkdir(exist_ok=True)
    found: Simulated = simulate(*programs, **given)
    for trace, program in zip(found.traces, programs, strict=True):
        trace.write(folder)
        write_owners(folder, trace.rank, owners_of(trace, program, modules))
    return load(folder, cache=False)


def owners_of(trace: RankTrace, program: Sequence[Op], modules: Sequence[str]) -> dict[str, Any]:
    """Return the file of owners of the first step: each thing begins with the host's work for it."""
    own = [e for e in trace.events if e["cat"] in ("cpu_op", "user_annotation") and e["tid"] == MAIN]
    step = next(e for e in own if e["name"] == "ProfilerStep#0")
    entries = [e for e in own if e is not step and step["ts"] <= e["ts"] < step["ts"] + step["dur"]]
    entries.sort(key=lambda e: (e["ts"], -e["dur"]))
    silent = {k for k, op in enumerate(program) if op.what in ("sync", "stall", "alloc", "wait")}
    loud = iter(k for k in range(len(program)) if k not in silent)
    names = list(dict.fromkeys(e["name"] for e in entries))
    stack, python, current = [], [], -1
    for i, e in enumerate(entries):
        if e["name"] == "aten::work" or e["name"].startswith("enumerate("):
            following = next(loud)
            # A copy's call lies in no operator, nor does what has none.
            before = [k for k in range(max(current, 0), following) if k in silent or program[k].what == "copy"]
            python += [[i, k, 1000] for k in before]
            current = following
        stack.append(current)
    python += [[len(entries), k, 1000] for k in range(current + 1, len(program))]
    thread = {"role": "training", "name": [names.index(e["name"]) for e in entries], "depth": depths(entries),
              "stack": stack, "module": [k % len(modules) if modules else -1 for k in stack],
              "sequence": [-1] * len(entries), "step": [0] * len(entries), "python": python}  # fmt: skip
    return {"schema": 1, "rank": trace.rank, "torch": "2.13.0", "steps": [0], "lines": "executing", "root": "/p",
            "files": ["train.py"], "frames": [[0, line_of(k), "train", 1] for k in range(len(program))],
            "stacks": [[k] for k in range(len(program))], "modules": list(modules), "names": names, "threads": [thread],
            "source_files": [], "buckets": None, "loader": None, "reasons": {}}  # fmt: skip


def depths(entries: Sequence[dict[str, Any]]) -> list[int]:
    """Return how many of the entries are around each; some of the simulator's cross."""
    out: list[int] = []
    ends: list[float] = []
    for e in entries:
        while ends and (ends[-1] <= e["ts"] or ends[-1] < e["ts"] + e["dur"]):
            ends.pop()
        out.append(len(ends))
        ends.append(e["ts"] + e["dur"])
    return out
