"""The job that slows one rank down: what does it cost, and does the step log of light mode show who it is?

    settings   those of `compare` with one series, and {"slow_rank", "delays_ms"}
    records    {"what": "samples", "series": "20 ms", "run", ...}      {"what": "log", "series", "run", "folder"}

Every delay is measured in each run, recorded in light mode: step and region times only, no profiler. The slow rank
sleeps before each of its steps, as a busy host would. Wherever a rank waits for the others is `gradient_sync`.
"""

import time
from collections.abc import Callable
from typing import Any

import torch

from stepscope.bench.data_parallel.contender import Contender, clear_memory
from stepscope.bench.session.measure import Samples, measure
from stepscope.bench.session.rank import Bench
from stepscope.bench.session.trace import wait_for_device
from stepscope.contract.step_line import GRADIENT_SYNC
from stepscope.record.profile import profile, region


def measure_slow_rank(bench: Bench, settings: dict[str, Any]) -> None:
    """Measure the settings' contender once per run and delay."""
    contender = Contender.of(settings, settings["series"][0])
    for run in range(int(settings["runs"])):
        for delay_ms in settings["delays_ms"]:
            clear_memory(bench)
            name = _delay_name(delay_ms)
            late_ms = float(delay_ms) if bench.rank == int(settings["slow_rank"]) else 0.0
            samples, log = _measure_delay(bench, contender, settings, late_ms, folder=f"logs/{name}-run{run}")
            bench.emit(what="log", series=name, run=run, folder=log)
            bench.emit(what="samples", series=name, run=run, **samples.as_dict())


def _delay_name(delay_ms: float) -> str:
    return f"{float(delay_ms):g}ms"


def _measure_delay(
    bench: Bench, contender: Contender, settings: dict[str, Any], late_ms: float, *, folder: str
) -> tuple[Samples, str | None]:
    training = contender.training(bench, mark=region)
    recording = profile(out=bench.out / folder, light=True, telemetry=False)
    with recording:
        step = _step(bench, training.step, late_ms, recording)
        samples = measure(
            step,
            warmup_steps=int(settings["warmup_steps"]),
            steps=int(settings["steps"]),
            device=bench.device,
            fed=training.fed,
        )
    return samples, str(recording.run_folder) if recording.run_folder else None


def _step(bench: Bench, step: Callable[[], torch.Tensor], late_ms: float, recording: Any) -> Callable[[], torch.Tensor]:

    def delayed() -> torch.Tensor:
        if late_ms:
            time.sleep(late_ms / 1000)
        loss = step()
        if bench.device.type == "cuda":
            with region(GRADIENT_SYNC):  # the host runs ahead of the device: here it waits for the other ranks
                wait_for_device(bench.device)
        recording.step()
        return loss

    return delayed
