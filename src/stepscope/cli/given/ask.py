"""Asking a running job for a profile window: one request at a time, made by whoever comes first.

It runs outside of the job, wherever its run folder can be written.
"""

import contextlib
import json
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stepscope.contract.live import LIVE_FOLDER, REQUEST, WindowPlan, WindowRequest, read_plan, read_request
from stepscope.contract.run_folder import SCHEMA, json_object_in, rank_of
from stepscope.errors import InputError
from stepscope.record.helper.claim import CLAIM, create_whole
from stepscope.record.live.live import has_ended, window_outcome

_POLL_S = 0.2
# for which rank 0's answer is waited for; it refuses before that where a rank is silent
_ANSWER_S = 30.0


def ask_for_window(folder: Path, *, steps: int, by: str, answer_s: float = _ANSWER_S) -> WindowPlan:
    """Return the plan that the job made of a request; an `InputError` where it refused, or cannot be asked."""
    _refuse_unless_running(folder)
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
        f"{folder}: no answer from rank 0 within {answer_s:.0f} s; its host is gone, or its storage is not this one"
    )


def _refuse_unless_running(folder: Path) -> None:
    if not json_object_in(folder / CLAIM):
        raise InputError(f"{folder}: no recorded job writes there; give the run folder that stepscope record named")
    if (why_not := _why_ended(folder)) is not None:
        raise InputError(why_not)


def put_request(folder: Path, request: WindowRequest) -> None:
    """Leave a request in the run folder; an `InputError` where there is one already."""
    path = folder / LIVE_FOLDER / REQUEST
    try:
        path.parent.mkdir(exist_ok=True)
        if create_whole(path, json.dumps({"schema": SCHEMA, **asdict(request)}, allow_nan=False) + "\n"):
            return
    except OSError as e:
        raise InputError(f"{path}: cannot ask there: {e.strerror}; the run folder has to be writable") from e
    raise InputError(f"{folder}: {_under_way(folder)}; ask again once it is over")


def withdraw(folder: Path, request: WindowRequest) -> None:
    """Take a request back that nobody answered."""
    found = read_request(folder)
    if found is not None and found.id == request.id:
        with contextlib.suppress(OSError):
            (folder / LIVE_FOLDER / REQUEST).unlink()


def wait_for_window(
    folder: Path, plan: WindowPlan, ranks: list[int], *, on_progress: Callable[[], None] = lambda: None
) -> dict[int, dict[str, Any]]:
    """Return what became of a window by rank, once all these ranks have said so or have ended."""
    done: dict[int, dict[str, Any]] = {}
    while True:
        over = {rank for rank in ranks if rank not in done and has_ended(folder, rank)}
        for rank in ranks:
            outcome = window_outcome(folder, rank, plan.window) if rank not in done else None
            if outcome is not None:
                done[rank] = outcome
            elif rank in over and rank not in done:
                done[rank] = {"status": "missing", "reason": f"it ended before step {plan.last}"}
        if len(done) == len(ranks):
            return done
        on_progress()
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


def _under_way(folder: Path) -> str:
    request, plan = read_request(folder), read_plan(folder)
    if request is None or plan is None or plan.id != request.id or plan.refused is not None:
        return "another window has just been asked for"
    return f"another window is under way, steps {plan.first} to {plan.last - 1}"
