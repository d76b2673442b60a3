"""`stepscope trigger`: ask a running job for a profile window, and say which steps it is and where it lies."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepscope.cli.given.ask import ask_for_window, ranks_of, wait_for_window
from stepscope.cli.given.attempts import newest_attempt
from stepscope.cli.messages import print_line, print_stderr, warn
from stepscope.cli.output import check_outputs, write_json
from stepscope.contract.live import MAX_ASKED_STEPS, WindowPlan
from stepscope.contract.run_folder import of_window
from stepscope.document.live import window_json
from stepscope.errors import InputError, UsageError
from stepscope.units import printable, readable_bytes


def run(args: argparse.Namespace) -> int:
    """Return 0 once all traces are written, 3 where a rank has none."""
    if args.steps > MAX_ASKED_STEPS:
        raise UsageError(f"--steps {args.steps}: a window has {MAX_ASKED_STEPS} steps at most; ask for fewer")
    check_outputs(args.json, force=args.force)
    folder = newest_attempt(args.run)
    plan = ask_for_window(folder, steps=args.steps, by="stepscope trigger")
    ranks = ranks_of(folder)
    many = "1 rank" if len(ranks) == 1 else f"{len(ranks)} ranks"
    say = print_line if args.json != "-" else print_stderr
    say(f"steps {plan.first} to {plan.last - 1} will be profiled on {many}")
    outcomes = {} if args.no_wait else wait_for_window(folder, plan, ranks)
    code = 0
    if args.no_wait:
        say(f"then: stepscope report {_shown(folder, plan)}")
    else:
        code = _say_outcome(folder, plan, outcomes, say)
    document = window_json(str(folder), plan, outcomes, report=str(folder / of_window(plan.window, "")))
    write_json(args.json, document, force=args.force)
    return code


def _say_outcome(
    folder: Path, plan: WindowPlan, outcomes: dict[int, dict[str, Any]], say: Callable[[str], None]
) -> int:
    written = [o for o in outcomes.values() if o.get("status") == "written"]
    without = {rank: o for rank, o in outcomes.items() if o.get("status") != "written"}
    for rank, outcome in sorted(without.items()):
        warn(f"rank {rank} has no trace of it: {outcome.get('reason') or outcome.get('status')}")
    if not written:
        raise InputError(f"{folder}: no rank has a trace of the window; {_reason(without)}")
    cut = next((o["cut"] for o in written if isinstance(o.get("cut"), str)), None)
    if cut is not None:
        warn(f"the window was cut short: {cut}")
    size_bytes = sum(o["bytes"] for o in written if isinstance(o.get("bytes"), int))
    traces = "1 trace" if len(written) == 1 else f"{len(written)} traces"
    say(f"written: {traces}, {readable_bytes(size_bytes)}")
    say(f"next: stepscope report {_shown(folder, plan)}")
    return 3 if without else 0


def _shown(folder: Path, plan: WindowPlan) -> str:
    return printable(str(folder / of_window(plan.window, "")))


def _reason(without: dict[int, dict[str, Any]]) -> str:
    return str(next((o["reason"] for o in without.values() if o.get("reason")), "see the job's own output"))
