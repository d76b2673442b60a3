"""Line and module sums of the same model run eagerly and as CUDA graphs, for training and inference, on one GPU.

    PYTHONPATH=src python benchmarks/gpu_graph_lines.py all OUT [JOB,JOB]   # record every form, then the table
    PYTHONPATH=src python benchmarks/gpu_graph_lines.py table OUT           # the table again
    PYTHONPATH=src python benchmarks/gpu_graph_lines.py memory OUT JOB      # step time with and without --memory

Jobs and forms are those of `gpu_graphs.py`. Eager is compared with `graphed` and `whole`, which run the same kernels,
and `fused` with `compiled`, which run those of the compiler. A row has the device's time per step in both, and the
largest difference over the lines (or modules) with 2 % of it or more, each in percent of its own; the aim is 5 %.
"""

import contextlib
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

STEPS, WARM, FIRST, LAST = 40, 8, 20, 26
LIMIT_S = 200  # for all forms to be compiled; then those that are ready begin
PAIRS = {"graphed": "eager", "whole": "eager", "compiled": "fused"}
MODES = ("train", "infer")
FORMING = ("<module>", "<lambda>", "main", "run", "made", "captured")


def run(name, form, mode, out="", expected="0"):
    """Run a job in one form, after its turn has come; in inference the step is the model alone."""
    import gpu_graphs
    import torch

    import stepscope

    job_class: Any = gpu_graphs.JOBS[name]
    base: Any = gpu_graphs.Job
    if mode == "infer":

        def infer(job):
            with torch.no_grad(), job.autocast(cache_enabled=False):
                job.log = job.run(*job.inputs)

        job_class.step = base.step = infer
        job_class.loss = lambda _job, _out: torch.zeros((), device=gpu_graphs.DEVICE, requires_grad=True)
    with contextlib.ExitStack() as opened:
        marks: Any = opened.enter_context(stepscope.profile()) if mode == "infer" else None  # no optimizer ends a step
        step: Any = gpu_graphs.made(name, form, capturable=True)  # in all forms: its kernels are others
        for k in range(STEPS):
            if k == WARM and out:
                gpu_graphs.synchronize()
                opened.enter_context(gpu_graphs.turn(f"{name}.{form}.{mode}", Path(out), int(expected)))
            step()
            if marks is not None:
                marks.step()
        gpu_graphs.synchronize()


def recording(folder, job, *options):
    command = [sys.executable, "-m", "stepscope", "record", "--out", str(folder), "--steps", f"{FIRST}:{LAST}"]
    return [*command, *options, "--", sys.executable, __file__, "run", *job]


def sums(folder):
    """Return device time by line and by module in percent of all, all per step in ms, and the warnings on graphs.

    Lines that make, capture and launch the forms differ between them and are left out.
    """
    import stepscope

    document = stepscope.load(folder).document
    whole = max(row["device_ms"] for row in document["code"])
    lines = {
        f"{row['file']}:{row['line']}": 100 * row["device_ms"] / whole
        for row in document["code"]
        if row["function"] not in FORMING
    }
    modules = {row["module"]: 100 * row["device_ms"] / whole for row in document["modules"]}
    return lines, modules, whole, [line for line in document["warnings"] if "CUDA graphs" in line]


def difference(mine, other):
    large = {name for one in (mine, other) for name, share in one.items() if share >= 2}
    gaps = {name: mine.get(name, 0) - other.get(name, 0) for name in large}
    return max(gaps.items(), key=lambda one: abs(one[1]), default=None)


def show(out):
    print(f"{'job':14s}{'mode':6s}{'form':10s}{'all, ms':>8s}{'of':>8s}{'lines':>8s}{'modules':>9s}  largest")
    within = []
    for folder in sorted(path for path in out.glob("*.*.*") if path.is_dir()):
        name, mode, form = folder.name.split(".")
        against = out / f"{name}.{mode}.{PAIRS.get(form, '')}"
        if form not in PAIRS or not against.is_dir():
            continue
        (lines, modules, whole, notes), (lines_of, modules_of, whole_of, _) = sums(folder), sums(against)
        found = [difference(lines, lines_of), difference(modules, modules_of)]
        known = [one for one in found if one is not None]
        within.append(all(abs(gap) <= 5 for _, gap in known))
        gaps = "".join(f"{'-' if one is None else format(one[1], '.1f'):>9s}" for one in found)
        print(f"{name:14s}{mode:6s}{form:10s}{whole:8.3f}{whole_of:8.3f}{gaps}  {', '.join(one for one, _ in known)}")
        for note in notes:
            print(f"    {note}")
    print(f"{sum(within)} of {len(within)} within 5 %")


def memory_cost(out, name):
    """Print the median step outside the window with and without --memory, in turns."""
    for k in range(6):
        folder, options = out / f"memory{k % 2}.{k}", ["--memory"] if k % 2 else []
        subprocess.run(recording(folder, (name, "eager", "train"), *options), check=False)
    for with_memory in (0, 1):
        medians = []
        for folder in sorted(out.glob(f"memory{with_memory}.*")):
            log = (folder / "rank00000.steps.jsonl").read_text().splitlines()[1:]
            steps = [json.loads(line) for line in log]
            medians.append(statistics.median(one["dur_ns"] for one in steps if not one["profiled"]) / 1e6)
        print(
            f"{'with' if with_memory else 'without'} --memory: {', '.join(f'{ms:.3f}' for ms in medians)} ms per step"
        )


def main():
    what, *rest = sys.argv[1:]
    if what == "run":
        run(*rest)
        return
    out = Path(rest[0])
    out.mkdir(parents=True, exist_ok=True)
    if what == "memory":
        memory_cost(out, rest[1])
        return
    if what == "all":
        import gpu_graphs  # torch is not needed for the table

        names = rest[1].split(",") if len(rest) > 1 else ["resnet50", "llama", "perceptron"]
        forms = [(name, form, mode) for name in names for mode in MODES for form in ("eager", "fused", *PAIRS)]

        def command(job):
            name, form, mode = job
            return recording(out / f"{name}.{mode}.{form}", (*job, str(out), str(len(forms))), "--graphs")

        gpu_graphs.in_turns(forms, out, LIMIT_S, command)
    show(out)


if __name__ == "__main__":
    main()
