"""A job of two ranks whose device draws known power in each part of the step, with the counters that would result.

    device of a rank   | idle | compute | wait for the late rank | transfer | compute |      ms, see `Plant`

Rank 1's host sleeps `late_ms` before its step where that is not 0; rank 0 waits for it in the all-reduce.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tests.analyze.build import RankTrace, built_run
from tests.analyze.step_logs import log_lines, write_log

from stepscope.run.load import Run

WATTS = {"compute": 600.0, "exposed_transfer": 350.0, "wait": 220.0, "idle": 110.0}
IDLE_MS, FIRST_MS, TRANSFER_MS, LAST_MS = 20.0, 110.0, 40.0, 30.0
TOKENS = 4096


@dataclass(frozen=True)
class Plant:
    """What is planted; times in ms."""

    late_ms: float = 0.0
    shared: bool = False
    """one device for both ranks; then rank 1 sleeps for longer than rank 0 computes"""
    steps: int = 300
    scale: float = 1.0
    """how much longer everything takes"""
    lag_ms: float = 35.0
    """the device is so far behind the host"""
    every_s: float = 0.1
    update_ms: float = 20.0
    """the counter shows a new value this often"""
    fresh: bool = True
    """readings are taken as it changes"""
    counter: bool = True

    def spans(self, rank: int) -> list[tuple[str, float]]:
        """Return the parts of one rank's device in a step, in order."""
        late = rank == 1
        return [
            ("idle", self.scale * (IDLE_MS + (self.late_ms if late else 0.0))),
            ("compute", self.scale * FIRST_MS),
            ("wait", self.scale * (0.0 if late else self.late_ms)),
            ("exposed_transfer", self.scale * TRANSFER_MS),
            ("compute", self.scale * LAST_MS),
        ]

    def device_spans(self, device: int) -> list[tuple[str, float]]:
        """Return the parts of one device in a step: of both ranks where they share it."""
        if not self.shared:
            return self.spans(device)
        # rank 0 computes alone, waits for the sleeper, and rank 1 computes alone: the device runs one at a time
        first = self.scale * FIRST_MS
        waits = self.scale * self.late_ms - first
        return [
            ("idle", self.scale * IDLE_MS),
            ("compute", first),
            ("wait", waits),
            *self.spans(0)[1:2],
            *self.spans(0)[3:],
        ]

    @property
    def step_ms(self) -> float:
        return sum(ms for _, ms in self.spans(0))

    def joules(self, device: int) -> dict[str, float]:
        """Return the joules of each part per step."""
        out = dict.fromkeys(WATTS, 0.0)
        for part, ms in self.device_spans(device):
            out[part] += WATTS[part] * ms / 1e3
        return {part: j for part, j in out.items() if j}


def planted_run(folder: Path, plant: Plant, *, light: bool = False) -> Run | None:
    """Write the run's traces (unless `light`), step logs and telemetry into `folder`; return the run."""
    folder.mkdir(parents=True, exist_ok=True)
    facts: dict[str, Any] = {"schema": 1, "world_size": 2, "tokens_per_step": TOKENS, "samples_per_step": None}
    reason = "nvmlDeviceGetTotalEnergyConsumption: not supported by this device"
    facts["ranks"] = {str(r): {"energy_unknown": None if plant.counter else {"device": reason}} for r in range(2)}
    for rank in range(2):
        write_steps(folder, plant, rank)
        write_telemetry(folder, plant, rank)
    if light:
        (folder / "run.json").write_text(json.dumps(facts))
        return None
    return built_run(folder, [trace_of(plant, rank) for rank in range(2)], description=facts)


EPOCH_NS = 1_700_000_000 * 10**9


def write_steps(folder: Path, plant: Plant, rank: int) -> None:
    lines = log_lines([plant.step_ms] * plant.steps, window=range(8, 14), at_ns=EPOCH_NS)
    lines[6]["phase"] = lines[7]["phase"] = "warmup"
    write_log(folder, rank, lines, ranks=2)


def write_telemetry(folder: Path, plant: Plant, rank: int) -> None:
    draw = np.random.default_rng(rank)
    device = 0 if plant.shared else rank
    spans = plant.device_spans(device)
    ends = np.cumsum([ms * 1e6 for _, ms in spans])
    joules = np.cumsum([WATTS[part] * ms / 1e3 for part, ms in spans])
    whole_s = plant.steps * ends[-1] / 1e9

    def energy(at_ns: np.ndarray) -> np.ndarray:
        seen_ns = np.floor(at_ns / (plant.update_ms * 1e6)) * plant.update_ms * 1e6 - plant.lag_ms * 1e6
        step, phase = np.divmod(seen_ns, ends[-1])
        inside = np.interp(phase, np.concatenate([[0], ends]), np.concatenate([[0], joules]))
        return 5e6 + step * joules[-1] + inside

    count = int(whole_s / plant.every_s) + 2
    at = np.cumsum(plant.every_s * draw.uniform(0.7, 1.3, count)) * 1e9
    if plant.fresh:
        update_ns = plant.update_ms * 1e6
        at = np.unique(np.ceil(at / update_ns) * update_ns)
        at += draw.uniform(0, 4e6, len(at))  # how late it is seen
    at = np.concatenate([[-1e8], at[at < whole_s * 1e9], [whole_s * 1e9 + 1e8]])
    lines: list[dict[str, Any]] = [
        {"kind": "device", "name": "NVIDIA H200", "uuid": f"GPU-{device}", "power_limit_w": 700.0},
        {"kind": "counters", "host_name": "node", **({"device": "nvml"} if plant.counter else {})},
    ]
    if plant.counter:
        for time_ns, joule in zip(at, energy(at), strict=True):
            row = {"time_ns": EPOCH_NS + int(time_ns), "energy_j": round(float(joule), 3), "power_w": None}
            lines.append({"kind": "energy", **row, "fresh": int(plant.fresh)})
    (folder / f"rank{rank:05}.telemetry.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def trace_of(plant: Plant, rank: int) -> RankTrace:
    """Return the trace of six steps; the host launches everything of a step at its start, the late one later."""
    r = RankTrace(rank, world_size=2, clock_offset_us=rank * 137)
    step_us = 1e3 * plant.step_ms
    for n in range(6):
        at = n * step_us
        r.step(n + 8, at, at + step_us)
        edges = np.concatenate([[0], np.cumsum([1e3 * ms for _, ms in plant.spans(rank)])]) + at
        begin = edges[1]
        if plant.late_ms and rank == 1:
            r.ran("aten::slow", at + 10, begin - 1000)
        with r.op("aten::mm", begin - 900, begin - 100):
            r.kernel("gemm", at=begin - 500, start=begin, end=edges[2])
        r.call("cudaStreamWaitEvent", begin - 90, begin - 88)
        r.collective("allreduce", at=begin - 80, start=edges[2], end=edges[4], elements=10_000_000)
        r.call("cudaStreamWaitEvent", begin - 50, begin - 48)
        r.annotation("Optimizer.step#AdamW.step", begin - 40, begin - 5)
        with r.op("aten::_fused_adamw_", begin - 35, begin - 10):
            r.kernel("fused_adam", at=begin - 30, start=edges[4], end=edges[5])
        r.call("cudaStreamSynchronize", begin, edges[5])
    return r
