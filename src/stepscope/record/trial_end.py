"""The end of a trial: after its last step a process writes all its results and exits with code 0.

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

from stepscope.record.config import has_other_ranks, initialized_distributed
from stepscope.record.helper.side_channel import open_side_channel


def end_trial(recorder: Any) -> NoReturn:
    """End this process once its results are written, the other ranks have come as far, and its children have exited."""
    with contextlib.suppress(Exception):
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()
    with contextlib.suppress(Exception):
        _wait_for_other_ranks()
    with contextlib.suppress(Exception):
        recorder.close()
    with contextlib.suppress(Exception):
        children = multiprocessing.active_children()
        for child in children:
            child.terminate()
        for child in children:
            child.join(2.0)
            if child.is_alive():
                child.kill()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(0)


def _wait_for_other_ranks() -> None:
    channel = open_side_channel() if has_other_ranks() else None
    if channel is None:
        return
    deadline = time.monotonic() + 30.0
    there = channel.count("trial_end")
    with contextlib.suppress(RuntimeError):  # the process with the store has exited: all had arrived
        while there < initialized_distributed().get_world_size() and time.monotonic() < deadline:
            time.sleep(0.02)
            there = channel.count("trial_end", 0)
