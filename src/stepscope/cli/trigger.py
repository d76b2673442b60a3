"""Request a profile window from a running job, without restarting it.

examples:
  stepscope trigger stepscope-run/
  stepscope trigger stepscope-run/ --steps 3
  stepscope trigger stepscope-run/ --no-wait
  stepscope trigger stepscope-run/ --json -

The job has to be under the recorder: stepscope record, also with --light, or stepscope.profile. All ranks profile the
same steps; none of them waits for another. The first window is in the run folder, the second in window1/, and so on.
"""

import argparse
import contextlib
import json
import re
import secrets
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepscope.cli.arguments import add_json, at_least_one
from stepscope.cli.outputs import check_outputs, print_line, print_stderr, warn, write_json
from stepscope.contract.live import (
    LIVE_FOLDER,
    MAX_ASKED_STEPS,
    REQUEST,
    WindowPlan,
    WindowRequest,
    read_plan,
    read_request,
)
from stepscope.contract.run_folder import SCHEMA, json_object_in, of_window, rank_of
from stepscope.errors import InputError, UsageError
from stepscope.record.helper.claim import CLAIM, create_whole, folders_of_launch
from stepscope.record.live.live import has_ended, window_outcome
from stepscope.units import printable, readable_bytes

_POLL_S = 0.2
_LAUNCH_S = 30.0  # from the start of `stepscope record` to that of its job


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("run", metavar="RUN", help="run folder of a job that runs")
    parser.add_argument("--steps", type=at_least_one, default=5, metavar="N", help="steps to profile (5)")
    parser.add_argument("--no-wait", action="store_true", help="do not wait until the traces are written")
    add_json(parser, "steps and traces as JSON")


def run(args: argparse.Namespace) -> int:
    """Return 0 once all traces are written, 3 if a rank has none."""
    from stepscope.document.live import window_json

    if args.steps > MAX_ASKED_STEPS:
        raise UsageError(f"--steps {args.steps}: a window has {MAX_ASKED_STEPS} steps at most; ask for fewer")
    check_outputs(args.json, force=args.force)
    wait_for_run(args.run)
    folder = newest_attempt(args.run)
    plan = ask_for_window(folder, steps=args.steps, by="stepscope trigger")
    ranks = ranks_of(folder)
    say = print_line if args.json != "-" else print_stderr
    say(f"steps {plan.first} to {plan.last - 1} will be profiled on {_count(len(ranks), 'rank')}")
    report = str(folder / of_window(plan.window, ""))
    outcomes = {} if args.no_wait else _wait_for_window(folder, plan, ranks)
    if args.no_wait:
        say(f"then: stepscope report {printable(report)}")
    else:
        _say_outcome(folder, outcomes, say)
        say(f"next: stepscope report {printable(report)}")
    write_json(args.json, window_json(str(folder), plan, outcomes, report=report), force=args.force)
    return 3 if any(o.get("status") != "written" for o in outcomes.values()) else 0


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _say_outcome(folder: Path, outcomes: dict[int, dict[str, Any]], say: Callable[[str], None]) -> None:
    written = [o for o in outcomes.values() if o.get("status") == "written"]
    without = {rank: o for rank, o in outcomes.items() if o.get("status") != "written"}
    for rank, outcome in sorted(without.items()):
        warn(f"rank {rank} has no trace of it: {outcome.get('reason') or outcome.get('status')}")
    if not written:
        reason = next((o["reason"] for o in without.values() if o.get("reason")), "see the job's own output")
        raise InputError(f"{folder}: no rank has a trace of the window; {reason}")
    cut = next((o["cut"] for o in written if isinstance(o.get("cut"), str)), None)
    if cut is not None:
        warn(f"the window was cut short: {cut}")
    size_bytes = sum(o["bytes"] for o in written if isinstance(o.get("bytes"), int))
    say(f"written: {_count(len(written), 'trace')}, {readable_bytes(size_bytes)}")


def wait_for_run(given: str | Path) -> None:
    """Wait for the first step of a job that has only just been started with this run folder."""
    from stepscope.record.launch.launch import is_launching, is_recorded_to

    folder, told, until = Path(given), False, time.monotonic() + _LAUNCH_S
    while not any(folder.glob("rank*.steps.jsonl")):
        if not is_recorded_to(folder) and (time.monotonic() > until or not is_launching()):
            return
        if not told and sys.stderr.isatty():
            print_stderr(f"waiting for the first step of the job that is recorded in {printable(str(folder))}")
            told = True
        time.sleep(_POLL_S)


def newest_attempt(given: str | Path) -> Path:
    """Return the newest run folder of the launch that made this one: `run-3` for `run` after two elastic restarts.

    The folder itself if it has no launch, or no later attempt; an `InputError` if there is no folder.
    """
    folder = Path(given)
    if not folder.is_dir():
        raise InputError(f"there is no run folder at {folder}; give the one that stepscope record named")
    launch = json_object_in(folder / CLAIM).get("launch_id")
    if not isinstance(launch, str):
        return folder
    first = folder.with_name(re.sub(r"-\d{1,5}$", "", folder.name))

    def age(attempt: Path) -> tuple[int, str]:
        rest = attempt.name.removeprefix(first.name).removeprefix("-")
        return int(rest) if rest.isdigit() else 1, attempt.name

    found = [*folders_of_launch(folder, launch), *folders_of_launch(first, launch)]
    newest = max(found, key=age, default=folder)
    return folder if newest.resolve() == folder.resolve() else folder.with_name(newest.name)


def ask_for_window(folder: Path, *, steps: int, by: str, answer_s: float = 30.0) -> WindowPlan:
    """Return the plan that the job made of a request; an `InputError` if it refused, or cannot be reached."""
    if not json_object_in(folder / CLAIM):
        raise InputError(f"{folder}: no recorded job writes there; give the run folder that stepscope record named")
    if (why_not := _why_ended(folder)) is not None:
        raise InputError(why_not)
    request = WindowRequest(secrets.token_hex(8), steps, by)
    put_request(folder, request)
    deadline = time.monotonic() + answer_s
    while time.monotonic() < deadline:
        plan = read_plan(folder)
        if plan is not None and plan.id == request.id:
            if plan.refused is not None:
                raise InputError(f"{folder}: {plan.refused}")
            return plan
        if (why_not := _why_ended(folder)) is not None:
            withdraw(folder, request)
            raise InputError(why_not)
        time.sleep(_POLL_S)
    withdraw(folder, request)
    raise InputError(
        f"{folder}: no answer from rank 0 within {answer_s:.0f} s; its host is down, or it uses other storage"
    )


def put_request(folder: Path, request: WindowRequest) -> None:
    """Write a request into the run folder; an `InputError` if there is one already."""
    path = folder / LIVE_FOLDER / REQUEST
    try:
        path.parent.mkdir(exist_ok=True)
        if create_whole(path, json.dumps({"schema": SCHEMA, **request._asdict()}, allow_nan=False) + "\n"):
            return
    except OSError as e:
        raise InputError(f"{path}: cannot request a window: {e.strerror}; make the run folder writable") from e
    other, plan = read_request(folder), read_plan(folder)
    if other is None or plan is None or plan.id != other.id or plan.refused is not None:
        raise InputError(f"{folder}: another window was just requested; retry when it is over")
    steps = f"steps {plan.first} to {plan.last - 1}"
    raise InputError(f"{folder}: another window is under way, {steps}; try again once it is over")


def withdraw(folder: Path, request: WindowRequest) -> None:
    """Remove a request that was not answered."""
    found = read_request(folder)
    if found is not None and found.id == request.id:
        with contextlib.suppress(OSError):
            (folder / LIVE_FOLDER / REQUEST).unlink()


def _wait_for_window(folder: Path, plan: WindowPlan, ranks: list[int]) -> dict[int, dict[str, Any]]:
    done: dict[int, dict[str, Any]] = {}
    while True:
        over = {rank for rank in ranks if rank not in done and has_ended(folder, rank)}  # read before the outcomes
        for rank in ranks:
            outcome = window_outcome(folder, rank, plan.window) if rank not in done else None
            if outcome is not None:
                done[rank] = outcome
            elif rank in over:
                done[rank] = {"status": "missing", "reason": f"it ended before step {plan.last}"}
        if len(done) == len(ranks):
            return done
        time.sleep(_POLL_S)


def ranks_of(folder: Path) -> list[int]:
    """Return the ranks that write into a run folder."""
    found = {rank_of(path.name) for path in folder.glob("rank*.steps.jsonl")}
    return sorted(rank for rank in found if rank is not None)


def _why_ended(folder: Path) -> str | None:
    ranks = ranks_of(folder)
    ended = [rank for rank in ranks if has_ended(folder, rank)]
    if not ended:
        return None
    if len(ended) == len(ranks):
        return f"{folder}: the job has ended; stepscope report {folder} shows what it left"
    return f"{folder}: rank {ended[0]} has ended, so the ranks would not record the same steps; is the job restarting?"
