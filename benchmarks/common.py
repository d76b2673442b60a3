"""Shared parts of the benchmarks: starting jobs, shared devices, peak memory, bootstrap intervals, tables, peers."""

import contextlib
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
SRC = ROOT / "src"
SCRATCH = Path(tempfile.gettempdir()) / "stepscope-benchmarks"
STEPSCOPE = [sys.executable, "-m", "stepscope"]
if str(SRC) not in sys.path:
    sys.path.insert(0, str(SRC))


# Jobs


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join([str(SRC), *filter(None, [os.environ.get("PYTHONPATH")])])
    quiet = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "KINETO_LOG_LEVEL": "99"}
    return {**os.environ, "PYTHONPATH": path, **quiet, "GLOO_SOCKET_IFNAME": "lo", **more}


def on_one_device(rank: object) -> dict[str, str]:
    """Return what NCCL needs to accept ranks that share a device: each claims to be on another host."""
    return {"NCCL_HOSTID": f"rank{rank}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}


def python(*words: object, ranks: int = 1) -> list[str]:
    """Return the command of a script, under torchrun for several ranks."""
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    return [sys.executable, *launch, *map(str, words)]


def recorded(folder: Path, job: list[str], *options: str) -> list[str]:
    return [*STEPSCOPE, "record", "--out", str(folder), *options, "--", *job]


def run(command: list[str], *, limit_s: float = 600, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command; raise with the end of its errors if it fails."""
    done = subprocess.run(command, env=environment(**more), capture_output=True, text=True, timeout=limit_s)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[-8:])} ended with {done.returncode}: {done.stderr[-1500:]}")
    return done


def run_json(command: list[str], *, limit_s: float = 600) -> Any:
    """Return the last line that a command prints, as JSON."""
    return json.loads(run(command, limit_s=limit_s).stdout.splitlines()[-1])


def report_of(folder: Path) -> dict[str, Any] | None:
    """Return the report of a run, None if there is none."""
    done = subprocess.run(
        [*STEPSCOPE, "report", str(folder), "--json", "-"], env=environment(), capture_output=True, text=True
    )
    return json.loads(done.stdout) if done.returncode in (0, 3) and done.stdout else None


@contextlib.contextmanager
def shared_device(device: str) -> Iterator[str]:
    """Let ranks run on one device at the same time if its multi-process service is available."""
    control = shutil.which("nvidia-cuda-mps-control")
    if device == "cpu" or control is None:
        yield "cpu" if device == "cpu" else "time-sliced"
        return
    with tempfile.TemporaryDirectory() as folder:
        names = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
        os.environ.update(dict.fromkeys(names, folder))
        subprocess.run([control, "-d"], timeout=30, check=False)
        works = [sys.executable, "-c", "import torch; torch.ones(2, device='cuda').sum().item()"]
        try:
            ok = subprocess.run(works, timeout=90, capture_output=True).returncode == 0
        except subprocess.TimeoutExpired:
            ok = False
        try:
            if not ok:
                for name in names:
                    del os.environ[name]
            yield "multi-process service" if ok else "time-sliced"
        finally:
            quit_env = {**os.environ, names[0]: folder}
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run([control], input="quit\n", text=True, timeout=30, check=False, env=quit_env)


def peer_python(home: Path, packages: Sequence[str]) -> Path:
    """Return the interpreter of an environment with other tools, created on first use."""
    interpreter = home / "bin" / "python"
    if not (home / "ready").exists():
        venv.create(home, with_pip=True)
        subprocess.run([interpreter, "-m", "pip", "install", "-q", *packages], check=True)
        (home / "ready").touch()
    return interpreter


# Measures


def own_peak_mb() -> float:
    """Return the peak of this process since it began; `getrusage` starts with its parent's."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    known = [int(line.split()[1]) for line in lines if line.startswith("VmHWM:")]
    return mb(known[0] if known else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def mb(kernel_kb: int) -> float:
    """Return megabytes for the kernel's kilobytes of 1,024 bytes."""
    return kernel_kb * 1024 / 1e6


def interval(
    values: Sequence[Any], statistic: Callable[[Sequence[Any]], float] = statistics.median, *, draws: int = 1000
) -> tuple[float, float, float]:
    """Return a statistic and its 95 % bootstrap interval."""
    rng = random.Random(0)
    drawn = sorted(statistic(rng.choices(values, k=len(values))) for _ in range(draws))
    return statistic(values), drawn[int(0.025 * draws)], drawn[int(0.975 * draws) - 1]


def saved_pct(pairs: Sequence[Sequence[Sequence[float]]], clock: int) -> tuple[float, float, float]:
    """Return the saving in % of the step over pairs of blocks (with a line, without it), and its interval."""
    return interval([100 * (1 - without[clock] / whole[clock]) for whole, without in pairs])


def calls_of_ours(step: Callable[[], object], steps: int) -> list[int]:
    """Return the number of functions that each step calls from stepscope's files, built-in ones included.

    Files are identified by the package's folder: a checkout may be named stepscope too and contain torch.
    """
    import stepscope

    package, counts = str(Path(stepscope.__file__).parent) + os.sep, [0]

    def counting(frame: FrameType, event: str, _: object) -> None:
        counts[-1] += event in ("call", "c_call") and frame.f_code.co_filename.startswith(package)

    sys.setprofile(counting)
    try:
        for _ in range(steps):
            counts.append(0)
            step()
    finally:
        sys.setprofile(None)
    return counts[1:]


# Tables


def row(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def table(head: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    return "\n".join([row(head), row(["---"] * len(head)), *map(row, rows)])


def number(value: float | None, form: str = ".2f", unknown: str = "?") -> str:
    return unknown if value is None else f"{value:{form}}"


def write_between(page: Path, name: str, text: str) -> None:
    """Replace the text between two marks on a page."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    page.write_text(f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}", encoding="utf-8")
