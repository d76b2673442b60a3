"""The energy meter checked on a real GPU, in under eight minutes; one GPU is enough, ranks share it.

    PYTHONPATH=src python benchmarks/gpu_energy.py --out results            measure, analyse if wasmtime is there
    PYTHONPATH=src python benchmarks/gpu_energy.py --analyse results        analyse what was measured elsewhere
    PYTHONPATH=src python benchmarks/gpu_energy.py --out /tmp/x --dry-run   no GPU: a planted libnvidia-ml, short

    blocks     joules of 60 s by `energy_of_spans` against the counter, read here by another process   within 3 %
    split      shares of the parts of the step in two recordings of one job                            within 5 %
    straggler  two ranks with a planted late one against the same job without it: predicted waste      within 10 %
    light      CPU time of the training thread per step in light mode, with and without the meter      no difference

Prints one JSON object, also in `OUT/gpu_energy.json`. A part that fails has `error`, the others go on. Measuring needs
torch only; analysing needs stepscope's own dependencies. The run folders stay in OUT.
"""

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from common import environment, on_one_device, python, recorded, report_of, run_json, shared_device

DRY = "GPU_ENERGY_DRY"
WINDOW = "20:26"
READY_STEP = 32
MAX_S = 150.0  # of one job
LATE_MS = 500.0  # far more than a rank computes: ranks that share a device may slow each other down
LIGHT_STEPS = 240
LIMITS = {"blocks": 3.0, "split": 5.0, "straggler": 10.0}


def main() -> int:
    if len(sys.argv) > 1 and sys.argv[1] == "_job":
        return job(Path(sys.argv[2]), float(sys.argv[3]))
    if len(sys.argv) > 1 and sys.argv[1] == "_light":
        return light_job(Path(sys.argv[2]), with_meter=sys.argv[3] == "on")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu_energy_results"))
    parser.add_argument("--analyse", type=Path, metavar="OUT", help="only analyse these results")
    parser.add_argument("--seconds", type=float, default=60.0, help="of a block (default 60)")
    parser.add_argument("--dry-run", action="store_true")
    args = parser.parse_args()
    out = (args.analyse or args.out).absolute()
    if args.analyse is None:
        if (out / "measured.json").exists():
            parser.error(f"{out} holds results already; give another --out, or --analyse {out}")
        out.mkdir(parents=True, exist_ok=True)
        if args.dry_run:
            os.environ[DRY] = "1"
            plant_library(out)
        measured = measure(out, 3.0 if args.dry_run else args.seconds)
        (out / "measured.json").write_text(json.dumps(measured, indent=1))
    else:
        measured = json.loads((out / "measured.json").read_text())
    results = {"measured": measured, **analysed(out, measured)}
    (out / "gpu_energy.json").write_text(json.dumps(results, indent=1))
    print(json.dumps(results, indent=1))
    return 0 if all(results[name].get("ok") for name in (*LIMITS, "light")) else 1


def guarded(act: Callable[[], Any]) -> Any:
    try:
        return act()
    except Exception as e:  # noqa: BLE001 - the other parts go on
        return {"error": f"{type(e).__name__}: {e}"[-2000:]}


# Measuring: torch and the standard library


def measure(out: Path, block_s: float) -> dict[str, Any]:
    began = time.monotonic()
    meter = guarded(Counter)
    found: dict[str, Any] = {"dry_run": DRY in os.environ, "block_s": block_s}
    if isinstance(meter, dict):
        return {**found, **meter, "took_s": 0.0}
    found["device"] = meter.name
    for name in ("one", "two"):
        found[name] = guarded(partial(watched, out / name, meter, block_s))
    with shared_device("cpu" if DRY in os.environ else "cuda") as sharing:
        found["sharing"] = sharing
        for name, late_ms in (("even", 0.0), ("late", LATE_MS)):
            found[name] = guarded(partial(watched, out / name, meter, block_s / 2, 2, late_ms))
    found["light"] = guarded(lambda: light(out))
    return {**found, "took_s": round(time.monotonic() - began, 1)}


class Counter:
    """The first device's energy counter, by calls of our own."""

    def __init__(self) -> None:
        try:
            self._nvml = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError as e:
            raise RuntimeError(f"no NVIDIA driver here: {e}; run on a machine with a GPU, or with --dry-run") from None
        self._check(self._nvml.nvmlInit_v2(), "nvmlInit_v2")
        self._handle = ctypes.c_void_p()
        index = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        number = ctypes.c_uint(int(index) if index.isdecimal() else 0)
        self._check(self._nvml.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(self._handle)), "GetHandleByIndex")
        name = ctypes.create_string_buffer(96)
        self._check(self._nvml.nvmlDeviceGetName(self._handle, name, ctypes.c_uint(96)), "GetName")
        self.name = name.value.decode()
        self.read()

    def read(self) -> tuple[int, float]:
        """Return the time (epoch ns) and the counter in joules."""
        value = ctypes.c_ulonglong()
        code = self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle, ctypes.byref(value))
        self._check(code, "nvmlDeviceGetTotalEnergyConsumption")
        return time.time_ns(), value.value / 1000

    def _check(self, code: int, what: str) -> None:
        if code:
            raise RuntimeError(f"{what} failed with NVML error {code}: this device has no usable energy counter")


def watched(folder: Path, meter: Counter, seconds: float, ranks: int = 1, late_ms: float = 0.0) -> dict[str, Any]:
    """Record the job and read the counter around a block of its steps."""
    flags = folder.with_name(f"{folder.name}.flags")
    flags.mkdir(parents=True, exist_ok=True)
    command = recorded(folder, python(__file__, "_job", flags, late_ms, ranks=ranks), "--steps", WINDOW)
    log = (flags.parent / f"{folder.name}.log").open("w")
    with log, subprocess.Popen(command, env=environment(), stdout=log, stderr=subprocess.STDOUT) as process:
        until = time.monotonic() + MAX_S
        while not (flags / "ready").exists():
            if process.poll() is not None or time.monotonic() > until:
                process.kill()
                raise RuntimeError(f"the job did not reach step {READY_STEP}: {Path(log.name).read_text()[-1500:]}")
            time.sleep(0.05)
        start_ns, start_j = meter.read()
        time.sleep(seconds)
        end_ns, end_j = meter.read()
        (flags / "stop").touch()
        try:
            code = process.wait(timeout=MAX_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise RuntimeError(f"the job did not end: {Path(log.name).read_text()[-1500:]}") from None
    if code:
        raise RuntimeError(f"the job ended with {code}: {Path(log.name).read_text()[-1500:]}")
    return {"start_ns": start_ns, "end_ns": end_ns, "counter_j": end_j - start_j}


def job(flags: Path, late_ms: float) -> int:
    """Train until told to stop: the same layer many times, 20 ms of loading; the last rank sleeps `late_ms` as well."""
    import torch
    import torch.distributed as dist

    dry = DRY in os.environ
    if dry:
        pretend_device()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    device = torch.device("cpu" if dry else "cuda:0")
    if not dry:
        torch.cuda.set_device(device)
    rows, width, times = (64, 64, 2) if dry else (32768, 2048, 96 if world == 1 else 24)
    torch.manual_seed(0)
    layer = torch.nn.Linear(width, width, bias=False, device=device)
    model: Any = torch.nn.Sequential(*[layer, torch.nn.Tanh()] * times)
    if world > 1:
        os.environ.update(on_one_device(rank))
        torch.set_num_threads(1)
        dist.init_process_group("gloo" if dry else "nccl", device_id=None if dry else device)
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.randn(rows, width, device=device)
    stop = torch.zeros(1, device=device)
    step = 0
    until = time.monotonic() + MAX_S
    while not stop.item():
        time.sleep(0.02)
        if late_ms and rank == world - 1:
            time.sleep(late_ms / 1e3)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = model(data).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        step += 1
        if step == READY_STEP and rank == 0:
            (flags / "ready").touch()
        if rank == 0 and ((flags / "stop").exists() or time.monotonic() > until):
            stop.fill_(1)
        if world > 1 and step % 4 == 0:
            dist.broadcast(stop, 0)
        elif world > 1:
            stop.fill_(0)  # all ranks end with the same step
    if world > 1:
        dist.destroy_process_group()
    return 0


def light(out: Path) -> dict[str, list[float]]:
    """Return the CPU time of the training thread per step, alternating with and without the meter."""
    found: dict[str, list[float]] = {"on": [], "off": []}
    for number in range(2 if DRY in os.environ else 4):
        name = ("on", "off")[number % 2]
        found[name].append(run_json(python(__file__, "_light", out / f"light-{name}-{number}", name), limit_s=MAX_S))
    return found


def light_job(folder: Path, *, with_meter: bool) -> int:
    import torch

    import stepscope

    dry = DRY in os.environ
    if dry:
        pretend_device()
    device = "cpu" if dry else "cuda"
    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512, device=device) for _ in range(8)])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.randn(64, 512, device=device)
    thread_ns = []
    with stepscope.profile(out=folder, light=True, telemetry=with_meter) as recording:
        for _ in range(LIGHT_STEPS // (10 if dry else 1)):
            began = time.thread_time_ns()
            with recording.region("forward_pass"):
                loss = model(data).square().mean()
            with recording.region("backward_pass"):
                loss.backward()
            with recording.region("optimizer_step"):
                optimizer.step()
                optimizer.zero_grad()
            loss.item()
            recording.step()
            thread_ns.append(time.thread_time_ns() - began)
            time.sleep(0.02)
    print(statistics.median(thread_ns[len(thread_ns) // 3 :]) / 1e3)
    return 0


# The dry run: a library that counts 300 W since it was loaded


def plant_library(out: Path) -> None:
    source = out / "planted.c"
    source.write_text(
        "#include <time.h>\n#include <string.h>\n"
        "static unsigned long long now(void) { struct timespec t; clock_gettime(CLOCK_REALTIME, &t);\n"
        "  return t.tv_sec * 1000ull + t.tv_nsec / 1000000; }\n"
        "int nvmlInit_v2(void) { return 0; }\nint nvmlShutdown(void) { return 0; }\n"
        "int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) { *h = (void *)1; return 0; }\n"
        "int nvmlDeviceGetHandleByUUID(const char *u, void **h) { *h = (void *)1; return 0; }\n"
        'int nvmlDeviceGetUUID(void *h, char *n, unsigned s) { strncpy(n, "GPU-planted", s); return 0; }\n'
        'int nvmlDeviceGetName(void *h, char *n, unsigned s) { strncpy(n, "planted", s); return 0; }\n'
        "int nvmlDeviceGetPowerUsage(void *h, unsigned *p) { *p = 300000; return 0; }\n"
        "int nvmlDeviceGetTotalEnergyConsumption(void *h, unsigned long long *e)\n"
        "{ *e = (now() / 20 * 20) % 100000000000ull * 300; return 0; }\n"
    )
    built = subprocess.run(
        ["cc", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o", str(out / "libnvidia-ml.so.1"), str(source)],
        capture_output=True,
        text=True,
    )
    if built.returncode:
        raise SystemExit(f"--dry-run needs a C compiler as `cc`: {built.stderr[-500:]}")
    os.environ["LD_LIBRARY_PATH"] = f"{out}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    ctypes.CDLL(str(out / "libnvidia-ml.so.1"), mode=ctypes.RTLD_GLOBAL)  # this process looked for libraries before


def pretend_device() -> None:
    from stepscope.record.helper import handover

    handover._device = lambda: {"kind": "cuda", "name": "planted", "index": 0, "uuid": None}


# Analysing: stepscope's dependencies


def analysed(out: Path, measured: dict[str, Any]) -> dict[str, Any]:
    if "error" in measured:
        return {name: {"error": measured["error"], "ok": False} for name in (*LIMITS, "light")}
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "blocks": lambda: blocks(out, measured),
        "split": lambda: split(out),
        "straggler": lambda: straggler(out),
        "light": lambda: light_result(measured),
    }
    return {name: guarded(part) for name, part in parts.items()}


def energy_of_run(folder: Path) -> dict[str, Any]:
    if find_spec("wasmtime") is None:
        raise RuntimeError(f"reading traces needs wasmtime; run --analyse {folder.parent} where stepscope is installed")
    report = report_of(folder)
    if report is None or report["energy"]["j_per_step"] is None:
        why = "there is no report" if report is None else report["energy"]["reason"]
        raise RuntimeError(f"{folder.name}: no joules per step: {why}")
    return {**report["energy"], "step_ms": report["step"]["unprofiled_ms"], "stragglers": report["stragglers"]}


def blocks(out: Path, measured: dict[str, Any]) -> dict[str, Any]:
    from stepscope.analyze.energy import energy_of_spans
    from stepscope.run.side_files import side_files

    rows = []
    for name in ("one", "two", "even", "late"):
        block = measured[name]
        if "error" in block:
            raise RuntimeError(f"{name}: {block['error']}")
        span = {"block": (block["start_ns"], block["end_ns"])}
        found, source = energy_of_spans([[(one, span) for one in side_files(out / name).telemetry]])
        ours = float(found["block"][0])
        off = 100 * (ours / block["counter_j"] - 1)
        seconds = (block["end_ns"] - block["start_ns"]) / 1e9
        row = {"run": name, "s": seconds, "ours_j": ours, "counter_j": block["counter_j"], "off_pct": off}
        rows.append({**row, "source": source})
    worst = max(abs(row["off_pct"]) for row in rows)
    return {"blocks": rows, "worst_pct": worst, "ok": worst <= LIMITS["blocks"]}


def split(out: Path) -> dict[str, Any]:
    found = [energy_of_run(out / name) for name in ("one", "two")]
    if not all(one["parts"] for one in found):
        raise RuntimeError(f"not split: {'; '.join(note for one in found for note in one['notes'])}")
    shares = [{part["part"]: part["pct"] for part in one["parts"]} for one in found]
    off = {part: abs(shares[0].get(part, 0.0) - shares[1].get(part, 0.0)) for part in {*shares[0], *shares[1]}}
    steps = [{key: one[key] for key in ("j_per_step", "step_ms", "parts", "notes")} for one in found]
    return {"runs": steps, "off_pct_of_step": off, "ok": max(off.values()) <= LIMITS["split"]}


def straggler(out: Path) -> dict[str, Any]:
    even, late = (energy_of_run(out / name) for name in ("even", "late"))
    keys = ("j_per_step", "step_ms", "parts", "late_ranks", "stragglers", "notes")
    difference = late["j_per_step"] - even["j_per_step"]
    predicted = sum(one["waste_j_per_step"] for one in late["late_ranks"])
    off = 100 * (predicted / difference - 1) if difference > 0 else None
    return {
        **{name: {key: one[key] for key in keys} for name, one in (("even", even), ("late", late))},
        "predicted_j": predicted,
        "difference_j": difference,
        "off_pct": off,
        "ok": off is not None and abs(off) <= LIMITS["straggler"],
    }


def light_result(measured: dict[str, Any]) -> dict[str, Any]:
    found = measured["light"]
    if "error" in found:
        raise RuntimeError(found["error"])
    on, off = (statistics.median(found[name]) for name in ("on", "off"))
    noise = max(0.03 * off, *(max(values) - min(values) for values in found.values()))
    return {"thread_us_with": on, "thread_us_without": off, "noise_us": noise, "runs": found, "ok": on - off <= noise}


if __name__ == "__main__":
    sys.exit(main())
