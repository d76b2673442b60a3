"""The end of a trial: after its last step a process writes all it knows and ends with code 0.

Nothing of the script runs after that, neither its evaluation nor its last checkpoint. Steps that were only timed are in
the log by then: the recorder is closed in the ordinary way, and its helper is waited for. Ranks wait for each other
first, through the job's store, so that none leaves while another is still in a collective.
"""

import contextlib
import multiprocessing
import os
import sys
import time
from typing import Any, NoReturn

import torch

from stepscope.record.helper.side_channel import open_side_channel
from stepscope.record.rank import initialized_distributed

_MEET_S = 30.0
_LOOK_S = 0.02
_CHILD_S = 2.0


def end_trial(recorder: Any) -> NoReturn:
    """End this process once its results are written, the other ranks have come as far, and its children are gone."""
    with contextlib.suppress(Exception):
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()
    with contextlib.suppress(Exception):
        _meet()
    with contextlib.suppress(Exception):
        recorder.close()
    with contextlib.suppress(Exception):
        _end_children()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(0)


def _meet(timeout_s: float = _MEET_S) -> bool:
    dist = initialized_distributed()
    channel = open_side_channel() if dist is not None and dist.get_world_size() > 1 else None
    if dist is None or channel is None:
        return True
    deadline = time.monotonic() + timeout_s
    there = channel.count("trial_end")
    while there < dist.get_world_size():
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_S)
        try:
            there = channel.count("trial_end", 0)
        except RuntimeError:  # whoever holds the store has left: all had come
            return True
    return True


def _end_children() -> None:
    children = multiprocessing.active_children()
    for child in children:
        child.terminate()
    for child in children:
        child.join(_CHILD_S)
        if child.is_alive():
            child.kill()
