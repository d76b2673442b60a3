"""The profiled window: what ends it early, its trace file, its FLOPs against torch's own counter.

T1, T2, ... in names number the faults that recording has to survive; `fault_runs.py` has their scenarios.
"""

import gzip
import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tests.limits import HANG_S
from tests.record.script_runs import run_json, script, started, steps
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from stepscope.record.config import RecordConfig
from stepscope.record.thread_samples import ThreadSamples
from stepscope.record.window import budget as budget_module
from stepscope.record.window.budget import Budget, TypicalStep, max_window_events
from stepscope.record.window.guards import ProfilerGuard
from stepscope.record.window.trace_file import compress_into, trouble_with_export
from stepscope.record.window.watched_step import StepCensus
from stepscope.record.window.window import Watchdog, may_interrupt


class World:
    """A process whose memory and clock are set by hand."""

    now_s = 0.0
    held_bytes = 1_000_000_000


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr(budget_module, "anonymous_bytes", lambda: world.held_bytes)
    monkeypatch.setattr("stepscope.record.window.budget.time.monotonic", lambda: world.now_s)
    return world


CONFIG = RecordConfig(max_events=10_000, max_seconds=60, max_memory_mb=100)
USUAL = TypicalStep(events=1_000, longest_s=1.0)


def test_counted_steps_fill_the_window_up_to_the_budget(world: World) -> None:
    budget = Budget(CONFIG, usual=USUAL)
    assert budget.spent_at_step(9) is None
    assert "event budget: 11000" in str(budget.spent_at_step(10))


def test_T12_export_stays_far_below_the_groups_timeout() -> None:
    assert max_window_events(RecordConfig(), group_timeout_s=1800) == RecordConfig().max_events
    assert max_window_events(RecordConfig(), group_timeout_s=None) == RecordConfig().max_events
    assert max_window_events(RecordConfig(), group_timeout_s=4) * 20e-6 <= 1.0


@contextmanager
def disk_full_after(size_bytes: int) -> Iterator[None]:
    """Let every file of this process end at a size, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(
    ("content", "trouble"),
    [
        (b'{"traceEvents": []}\n', None),
        (b"", "does not begin"),
        (b'{"traceEvents": [{"name": "cut', "breaks off"),
        (b"\0" * 100, "does not begin"),
        (None, "wrote no file"),
    ],
)
def test_T4_export_is_judged_by_its_head_and_tail(tmp_path: Path, content: bytes | None, trouble: str | None) -> None:
    plain = tmp_path / "trace.json"
    if content is not None:
        plain.write_bytes(content)
    found = trouble_with_export(plain)
    assert found is None if trouble is None else trouble in str(found)


def test_T5_disk_full_halfway_leaves_nothing(tmp_path: Path) -> None:
    plain, target = tmp_path / "trace.json", tmp_path / "rank00000.pt.trace.json.gz"
    plain.write_bytes(b"".join(b"%d," % (i * 7919 % 104729) for i in range(300_000)))
    with disk_full_after(50_000), pytest.raises(OSError, match="large"):
        compress_into(plain, target)
    assert [p.name for p in tmp_path.iterdir()] == ["trace.json"]


class Small(torch.nn.Module):
    """A convolution, its transpose, a linear layer and a batched product."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, stride=2, padding=1, dilation=1)
        self.up = torch.nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.linear = torch.nn.Linear(16, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.up(self.conv(x))
        q = self.linear(x).unflatten(-1, (2, 16)).transpose(1, 2).flatten(0, 1)
        return q @ q.transpose(-1, -2)


def census_of(step: object) -> dict[str, int]:
    census = StepCensus(ProfilerGuard(), RecordConfig(), TypicalStep())
    census.begin()
    step()  # type: ignore[operator]
    found = census.counts()
    assert found is not None
    return found


def test_convolutions_and_products_agree_with_torch() -> None:
    model, x = Small(), torch.randn(2, 3, 16, 16)
    counter = FlopCounterMode(display=False)
    with counter:
        model(x)
    forward = counter.get_total_flops()
    with counter:
        model(x).sum().backward()
    found = census_of(lambda: model(x).sum().backward())
    assert found["forward"] == forward
    assert found["total"] == counter.get_total_flops()


def test_attention_is_counted_in_full() -> None:
    b, h, s, d = 2, 4, 16, 8
    q, k, v = (torch.randn(b, h, s, d, requires_grad=True) for _ in range(3))
    found = census_of(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward())
    assert found["forward"] == 4 * b * h * s * s * d
    assert found["total"] == found["forward"] * (1 + 2.5)  # backward computes the scores once more


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_is_in_the_total_and_not_in_the_forward(reentrant: bool) -> None:
    layer = torch.nn.Linear(8, 8)
    x = torch.randn(4, 8, requires_grad=True)
    once = 2 * 4 * 8 * 8
    found = census_of(lambda: checkpoint(layer, x, use_reentrant=reentrant).sum().backward())
    assert (found["forward"], found["total"]) == (once, 4 * once)


@pytest.mark.parametrize(
    ("file", "expected"),
    [("session.py", False), ("hooks/root_hooks.py", True), ("hooks/loop/loop.py", False), ("hooks/backward.py", False)],
)
def test_it_interrupts_the_script_but_not_the_recorder(file: str, expected: bool) -> None:
    path = Path(sys.modules[Watchdog.__module__].__file__ or "").parents[1] / file
    found: list[bool] = []
    script_ = compile("found.append(may_interrupt(frame()))", "script.py", "exec")
    names = {"found": found, "may_interrupt": may_interrupt, "frame": sys._getframe, "script": script_}
    exec(compile("exec(script)", str(path), "exec"), names)
    assert found == [expected]


def recorded_operators(trace: Path) -> int:
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    return sum(event.get("cat") == "cpu_op" for event in events)


@pytest.mark.job
@pytest.mark.parametrize("at", [11, 15])
def test_operators_that_no_hook_sees_are_bounded(at: int, tmp_path: Path) -> None:
    config = RecordConfig(out=str(tmp_path / "run"), max_events=10_000, telemetry=False)
    operators = 40_000
    done = started(script("unhooked.py", str(at), str(operators)), tmp_path, config)
    assert done.returncode == 0, done.stderr
    assert done.stdout == started(script("unhooked.py", str(at), str(operators)), tmp_path).stdout
    assert len(steps(tmp_path)) == 24
    if at == 11:  # inside the window
        window = run_json(tmp_path)["windows"][0]["ranks"]["0"]
        assert "event budget" in window["cut"] and window["last_step"] == 11
        # it ended while the step went on: adding a number to a tensor is five operators
        assert recorded_operators(tmp_path / "run" / window["name"]) < 5 * operators
    assert run_json(tmp_path)["flops_per_step"] == 512  # of another step, where the one to be counted was too much
    assert [line["step"] for line in steps(tmp_path) if line["profiled"]][-1] in (16, 17, 18)


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


@pytest.mark.job
def test_a_span_of_the_user_outlives_our_profiler(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    done = subprocess.run(
        [sys.executable, "job.py"], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=HANG_S
    )
    assert done.returncode == 0, done.stdout[-40:] + done.stderr[-2000:]


def test_threads_of_the_recorder_are_in_no_table_of_the_user_s_profiler() -> None:
    over = threading.Event()

    def waits_for_its_turn() -> None:
        over.wait()

    def profiled() -> str:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], with_stack=True) as profiler:
            torch.ones(3) + 1
        return "\n".join(entry.key for entry in profiler.key_averages())

    guard, samples = ProfilerGuard(), ThreadSamples()
    thread = threading.Thread(target=waits_for_its_turn, daemon=True)
    thread.start()
    for step in range(4):
        samples.on_step_end(step)
    try:
        assert "stepscope/record/thread_samples.py" in profiled()
        guard.install()
        found = profiled()
        assert "stepscope/record/thread_samples.py" not in found
        assert "waits_for_its_turn" in found and "aten::add" in found
        guard.remove()
        assert "stepscope/record/thread_samples.py" in profiled()
    finally:
        guard.remove()
        over.set()
        thread.join()
        samples.on_watch(False)
        samples._is_over = True
        samples._over.release()
