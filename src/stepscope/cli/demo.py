"""`stepscope demo`: start the job, show the report, say whether the planted fault was found."""

import argparse
import importlib
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.cli.messages import print_line, print_stderr
from stepscope.cli.record import shown
from stepscope.errors import UsageError
from stepscope.record.config import WAIT_STEPS, WARMUP_STEPS, RecordConfig
from stepscope.record.launch.launch import launch, why_not_writable
from stepscope.run.step_log import StepLog, step_logs

_SCRIPT = Path(__file__).parents[1] / "bench" / "demo_train.py"
SLOW_MS = 60.0
_STEPS = 70
# a machine that does other things too disturbs single steps: that many, profiled or not, hardly show it
_RECORDED_STEPS = 20
_NOBODY_LATE = "no straggler was named; if this machine was busy, run the demo again when it is quiet"
_HTML = "report.html"


def run(args: argparse.Namespace) -> int:
    """Return 0 where the planted fault was found, 3 where it was not, 2 where the job failed."""
    _check(args)
    slow_rank = args.ranks - 1
    print_line(f"A small GPT on {args.ranks} CPU ranks with DDP. Rank {slow_rank} sleeps {SLOW_MS:g} ms in every step.")
    folder = _record_job(args, slow_rank=slow_rank)
    if folder is None:
        print_stderr("stepscope demo: the training job failed, its own lines are above")
        return 2
    print_line()
    print_line(f"$ stepscope report {shown(folder)}")
    late, exit_code = _show_report(folder)
    if exit_code:
        return exit_code
    for line in ["", *_conclusion(late, step_logs(folder), slow_rank=slow_rank), *_next(folder)]:
        print_line(line)
    return 0 if [finding["ranks"] for finding in late] == [[slow_rank]] else 3


def _check(args: argparse.Namespace) -> None:
    if args.ranks < 2:
        raise UsageError(f"--world-size: the demo needs at least 2, so that one can be late, not {args.ranks}")
    if importlib.util.find_spec("torch") is None:
        raise UsageError(
            f"torch is not installed in {sys.prefix}, and the demo trains a small model: pip install torch"
        )
    why_not = why_not_writable(args.out)
    if why_not:
        raise UsageError(f"--out {args.out}: cannot write there, since {why_not}; give another folder")


def _record_job(args: argparse.Namespace, *, slow_rank: int) -> Path | None:
    words = ["--steps", str(_STEPS), "--slow-rank", str(slow_rank), "--slow-ms", f"{SLOW_MS:g}"]
    torchrun = ["torch.distributed.run", "--standalone", f"--nproc-per-node={args.ranks}"]
    print_line(
        f"$ stepscope record --out {args.out} --steps {_window()} -- "
        f"torchrun {' '.join([*torchrun[1:], _SCRIPT.name, *words])}"
    )
    launched = launch(
        [sys.executable, "-m", *torchrun, str(_SCRIPT), *words],
        RecordConfig(out=args.out, active=_RECORDED_STEPS),
        environ={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    done = launched.exit_code == 0 and launched.folders
    return launched.folders[-1] if done else None


def _window() -> str:
    first = WAIT_STEPS + WARMUP_STEPS
    return f"{first}:{first + _RECORDED_STEPS}"


def _show_report(folder: Path) -> tuple[list[dict[str, Any]], int]:
    from stepscope.cli.main import main as stepscope

    with tempfile.TemporaryDirectory() as elsewhere:
        report = Path(elsewhere, "report.json")
        exit_code = stepscope(
            ["report", shown(folder), "--json", str(report), "--html", str(folder / _HTML), "--force"]
        )
        findings = json.loads(report.read_text())["findings"] if report.exists() else []
    return [finding for finding in findings if finding["id"] == "straggler"], exit_code


def _conclusion(late: list[dict[str, Any]], logs: Sequence[StepLog], *, slow_rank: int) -> list[str]:
    found = [
        f"rank {', '.join(map(str, f['ranks']))} is late and costs {f['saving_ms_per_step']:.0f} ms per step "
        f"({f['saving_low_ms']:.0f} to {f['saving_high_ms']:.0f}), because of its {f['cause'].split(':')[0]}"
        for f in late
    ]
    own = ", ".join(f"rank {log.rank} {_own_ms(log):.0f} ms" for log in logs)
    return [
        f"Planted     rank {slow_rank} sleeps {SLOW_MS:g} ms per step on its host",
        f"Found       {'; '.join(found) or _NOBODY_LATE}",
        f"Step log    time per step without waiting for gradients: {own}",
    ]


def _own_ms(log: StepLog) -> float:
    own_ns = log.dur_ns - log.column("regions.gradient_sync.ns")
    return float(np.nanmedian(own_ns[log.unprofiled])) / 1e6


def _next(folder: Path) -> list[str]:
    return [
        "",
        f"Open {shown(folder / _HTML)} in a browser: the whole report, no network needed.",
        f"The run is in {shown(folder)}. Look at it again with: stepscope report {shown(folder)}",
        "Record your own job, unchanged, with: stepscope record -- torchrun train.py",
    ]
