"""Record, analyse and report a small real job on this machine, with a fault planted in it.

A small GPT is trained on two CPU ranks with DDP, and one rank is held up for a known time in every step. The job is
an ordinary script that knows nothing of stepscope. It takes about a minute.

examples:
  stepscope demo
  stepscope demo --world-size 4 --out /tmp/demo
"""

import argparse
import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from stepscope.cli.arguments import at_least_one
from stepscope.cli.outputs import print_line, print_stderr
from stepscope.cli.record import shown
from stepscope.errors import UsageError
from stepscope.record.config import WAIT_STEPS, WARMUP_STEPS, RecordConfig

SLOW_MS = 60.0
STEPS = 70
# a busy machine disturbs single steps: with this many it hardly shows
_RECORDED_STEPS = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "--world-size",
        "--ranks",
        dest="ranks",
        type=at_least_one,
        default=2,
        metavar="N",
        help="ranks to train with (2)",
    )
    parser.add_argument("--out", default="stepscope-demo", metavar="DIR", help="run folder (./stepscope-demo)")


def run(args: argparse.Namespace) -> int:
    """Return 0 if the planted fault was found, 3 if it was not, 2 if the job failed."""
    from stepscope.record.launch.launch import why_not_writable

    if args.ranks < 2:
        raise UsageError(f"--world-size: the demo needs at least 2, so that one can be late, not {args.ranks}")
    if find_spec("torch") is None:
        raise UsageError(
            f"torch is not installed in {sys.prefix}, and the demo trains a small model: pip install torch"
        )
    why_not = why_not_writable(args.out)
    if why_not:
        raise UsageError(f"--out {args.out}: cannot write there, since {why_not}; give another folder")
    slow_rank = args.ranks - 1
    print_line(f"A small GPT on {args.ranks} CPU ranks with DDP. Rank {slow_rank} sleeps {SLOW_MS:g} ms in every step.")
    folder = _record_job(args, slow_rank=slow_rank)
    if folder is None:
        print_stderr("stepscope demo: the training job failed, its own lines are above")
        return 2
    print_line()
    print_line(f"$ stepscope report {shown(folder)}")
    page = folder / "report.html"
    document, exit_code = _show_report(folder, page)
    if exit_code:
        return exit_code
    late = [finding for finding in document["findings"] if finding["id"] == "straggler"]
    for line in (
        "",
        *_conclusion(late, document["step"], folder, slow_rank=slow_rank),
        "",
        f"Open {shown(page)} in a browser: the whole report, no network needed.",
        f"The run is in {shown(folder)}. Show it again with: stepscope report {shown(folder)}",
        "Record your own job, unchanged, with: stepscope record -- torchrun train.py",
    ):
        print_line(line)
    return 0 if [finding["ranks"] for finding in late] == [[slow_rank]] else 3


def _record_job(args: argparse.Namespace, *, slow_rank: int) -> Path | None:
    from stepscope.record.launch.launch import launch

    script = Path(__file__).parents[1] / "demo_train.py"
    words = ["--steps", str(STEPS), "--slow-rank", str(slow_rank), "--slow-ms", f"{SLOW_MS:g}"]
    torchrun = ["torch.distributed.run", "--standalone", f"--nproc-per-node={args.ranks}"]
    first = WAIT_STEPS + WARMUP_STEPS
    print_line(
        f"$ stepscope record --out {args.out} --steps {first}:{first + _RECORDED_STEPS} -- "
        f"torchrun {' '.join([*torchrun[1:], script.name, *words])}"
    )
    launched = launch(
        [sys.executable, "-m", *torchrun, str(script), *words],
        RecordConfig(out=args.out, active=_RECORDED_STEPS),
        environ={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    return launched.folders[-1] if launched.exit_code == 0 and launched.folders else None


def _show_report(folder: Path, page: Path) -> tuple[dict[str, Any], int]:
    import tempfile

    from stepscope.cli.main import main as stepscope

    with tempfile.TemporaryDirectory() as elsewhere:
        report = Path(elsewhere, "report.json")
        exit_code = stepscope(["report", shown(folder), "--json", str(report), "--html", str(page), "--force"])
        return json.loads(report.read_text()) if report.exists() else {"findings": [], "step": {}}, exit_code


def _conclusion(late: list[dict[str, Any]], step: dict[str, Any], folder: Path, *, slow_rank: int) -> list[str]:
    import numpy as np

    from stepscope.run.side_files import step_logs

    found = "; ".join(
        f"rank {', '.join(map(str, f['ranks']))} is late and costs {f['saving_ms_per_step']:.0f} ms per step "
        f"({f['saving_low_ms']:.0f} to {f['saving_high_ms']:.0f}), because of its {f['cause'].split(':')[0]}"
        for f in late
    )
    own = []
    for log in step_logs(folder):
        own_ns = (log.dur_ns - log.column("regions.gradient_sync.ns"))[log.unprofiled]
        own.append(f"rank {log.rank} {float(np.nanmedian(own_ns)) / 1e6:.0f} ms")
    none = "no straggler was named; if this machine was busy, run the demo again when it is quiet"
    return [
        f"Planted     rank {slow_rank} sleeps {SLOW_MS:g} ms per step on its host",
        *_counted(step),
        f"Found       {found or none}",
        f"Step log    time per step without waiting for gradients: {', '.join(own)}",
    ]


def _counted(step: dict[str, Any]) -> list[str]:
    """Return how much of the planted sleep is in the report's times, where those of all ranks are shortened alike."""
    if not step.get("starved"):
        return []
    share = step["unprofiled_ms"] / (step["unprofiled_ms"] + step["core_wait_ms"])
    return [f"Counted     {SLOW_MS * share:.0f} ms of it: without waits for a core all times are shorter, sleeps too"]
