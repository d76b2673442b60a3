"""A span that is open when our profiler stops ends outside any other profiler, which would write into freed memory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.limits import HANG_S

pytestmark = pytest.mark.job

# Freed memory is overwritten, so that a late write into it is a crash at once and not now and then.
ENVIRONMENT = {**os.environ, "MALLOC_PERTURB_": "165", "OMP_NUM_THREADS": "1"}
JOB = """
import torch
import torch.autograd.profiler as autograd_profiler
from torch.profiler import record_function
from stepscope.record.config import RecordConfig
from stepscope.record.window.budget import TypicalStep
from stepscope.record.window.kineto import Kineto
from stepscope.record.window.guards import ProfilerGuard
from stepscope.record.window.watched_step import StepCensus

def work():
    for _ in range(50):
        torch.ones(64, 64) @ torch.ones(64, 64)

def window(end):
    profiler = Kineto(RecordConfig(), ProfilerGuard(), keep_events=False)
    profiler.prepare()
    profiler.start()
    work()
    span = record_function("a span of the user")
    span.__enter__()
    work()
    profiler.stop(about={}) if end == "stop" else profiler.cancel(prepared=False)
    return span

def census(end):
    counted = StepCensus(ProfilerGuard(), RecordConfig(), TypicalStep())
    counted.begin()
    work()
    span = record_function("a span of the user")
    span.__enter__()
    work()
    counted.end() if end == "stop" else counted.stop("for this test")
    return span

for session, end in [(session, end) for session in (window, census) for end in ("stop", "cancel")] * 25:
    print(session.__name__, end, flush=True)
    span = session(end)
    other = autograd_profiler.profile(use_cpu=True, use_kineto=True)
    with other:
        work()
        span.__exit__(None, None, None)
        with record_function("afterwards"):
            work()
    assert any(e.name() == "afterwards" for e in other.kineto_results.events())
"""


def test_a_span_of_the_user_outlives_our_profiler(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    done = subprocess.run(
        [sys.executable, "job.py"], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=HANG_S
    )
    assert done.returncode == 0, done.stdout[-40:] + done.stderr[-2000:]
