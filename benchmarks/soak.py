"""Does light mode stay as it begins? Many steps of a trivial loop: memory of ours, of both processes, calls per step.

python benchmarks/soak.py --write        10,000 steps; writes benchmarks/soak.md, which docs/reliability.md shows
"""

import argparse
import gc
import os
import platform
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src")]
PAGE = HERE / "soak.md"
COUNTED = 40
"""steps whose calls are counted at each look"""
FOLLOWED_S = 0.3
"""after which the next step is followed, not only timed"""


@dataclass(frozen=True)
class Look:
    """How things stood after some steps."""

    steps: int
    own_kb: float
    """Python memory that our files hold in the training process"""
    process_mb: float | None
    helper_mb: float | None
    calls: int
    """of ours in a step that is only timed"""


def soak(folder: Path, *, steps: int, looks: int) -> Iterator[Look]:
    """Yield `looks` looks at a loop that is recorded in light mode, at even distances."""
    import torch

    from stepscope.record.config import RecordConfig
    from stepscope.record.hooks.install import install
    from stepscope.record.session import Recorder

    torch.manual_seed(0)
    step = trivial_step()
    recorder: Any = Recorder.start(RecordConfig(out=str(folder / "run"), light=True, telemetry=False))
    hooks = install(lambda: recorder)
    hooks.loop.start()
    tracemalloc.start()
    try:
        for look in range(1, looks + 1):
            for _ in range(steps // looks - COUNTED):
                step()
            calls = calls_of_ours(step)
            settle(step, recorder)
            helper = recorder._run.outbox.helper_pid
            yield Look(look * (steps // looks), own_kb(), resident_mb(os.getpid()), resident_mb(helper), calls)
    finally:
        tracemalloc.stop()
        hooks.remove()
        recorder.close()


def settle(step: Any, recorder: Any) -> None:
    """Let nothing wait that leaves by itself: steps until one is followed, lines for a tenth of a second."""
    time.sleep(FOLLOWED_S)
    for _ in range(3):
        step()
    recorder._log.flush()


def trivial_step() -> Any:
    """Return one step of a loop that computes next to nothing."""
    import torch

    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.ones(1, 2)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    return step


def own_kb() -> float:
    """Return the Python memory that was allocated in our files and is still held."""
    gc.collect()
    own = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, f"{package()}*")])
    return sum(entry.size for entry in own.statistics("filename")) / 1024


def resident_mb(pid: int) -> float | None:
    """Return a process's resident memory, None where the system does not tell."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def calls_of_ours(step: Any) -> int:
    """Return how many functions of our files a step calls that is only timed: the same on every machine."""
    counts, own = [0], package()

    def counting(frame: FrameType, event: str, _: object) -> None:
        counts[-1] += event in ("call", "c_call") and frame.f_code.co_filename.startswith(own)

    sys.setprofile(counting)
    try:
        for _ in range(COUNTED):
            counts.append(0)
            step()
    finally:
        sys.setprofile(None)
    return min(counts[1:])


def package() -> str:
    """Return the folder of our files: a checkout may be named like the package, and have torch inside it."""
    import stepscope

    return str(Path(stepscope.__file__).parent) + os.sep


def section(looks: list[Look]) -> str:
    """Return the result as a section of a page."""
    shown = [
        f"| {x.steps:,} | {x.own_kb:.0f} | {_mb(x.process_mb)} | {_mb(x.helper_mb)} | {x.calls} |\n" for x in looks
    ]
    return (
        "## Soak\n\n"
        f"{looks[-1].steps:,} steps of a trivial loop in light mode, recorded by the hooks\n"
        f"(`python benchmarks/soak.py --write`; {platform.machine()}, Python {platform.python_version()}).\n"
        "Memory of ours is what tracemalloc finds allocated in our files; resident memory also holds torch and the\n"
        "bookkeeping of tracemalloc.\n"
        "Calls are those of a step that is only timed, as most are. A short form of it is a test.\n\n"
        "| steps | memory of ours, kB | training process, MB | helper process, MB | calls of ours per step |\n"
        f"|---|---|---|---|---|\n{''.join(shown)}"
    )


def _mb(value: float | None) -> str:
    return "?" if value is None else f"{value:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--looks", type=int, default=10)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = section(list(soak(Path(folder), steps=args.steps, looks=args.looks)))
    print(text)
    if args.write:
        PAGE.write_text(text)


if __name__ == "__main__":
    main()
