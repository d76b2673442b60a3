"""The summary of a profiled implementation as plain text: configuration, times per phase, throughput, operators."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Epoch:
    """One epoch of training."""

    number: int
    kind: str
    """warm-up or training"""
    lr: float
    loss: float
    step_ms: float
    recorded: bool
    """while the profiler was on"""


def summary_text(
    settings: dict[str, Any],
    epochs: Sequence[Epoch],
    *,
    regions_ms: dict[str, float],
    operators: str,
    bench: dict[str, Any],
) -> str:
    """Return the whole summary."""
    parts = [
        f"Profile of {settings['implementation']}",
        _titled("Configuration", _configuration(settings, bench)),
        _titled("Step time per phase (ms)", [*_phases(epochs), *_regions(regions_ms)]),
        _titled("Throughput", _throughput(settings, epochs, bench)),
        _titled("Top operators of the recorded epochs", operators.splitlines()),
    ]
    return "\n\n".join(parts) + "\n"


def _titled(title: str, lines: Sequence[str]) -> str:
    return "\n".join([title, "-" * len(title), *lines])


def _configuration(settings: dict[str, Any], bench: dict[str, Any]) -> list[str]:
    shown = {
        **settings["workload"],
        **settings.get("options", {}),
        "grad_accum": settings.get("grad_accum", 1),
        "warmup_epochs": settings["warmup_steps"],
        "num_epochs": settings["steps"],
        **bench,
    }
    return [f"{name:<18} {value}" for name, value in shown.items()]


def _phases(epochs: Sequence[Epoch]) -> list[str]:
    """Return a line per phase, with and without the profiler; the median, because the first epoch sets things up."""
    lines = [f"{'phase':<26} {'epochs':>6} {'median':>9} {'mean':>9} {'min':>9} {'max':>9}"]
    for kind in ("warm-up", "training"):
        for recorded in (False, True):
            times = [e.step_ms for e in epochs if e.kind == kind and e.recorded == recorded]
            if times:
                name = f"{kind}{', recorded' if recorded else ''}"
                figures = (statistics.median(times), statistics.fmean(times), min(times), max(times))
                lines.append(f"{name:<26} {len(times):>6} " + " ".join(f"{x:>9.2f}" for x in figures))
    return lines


def _regions(regions_ms: dict[str, float]) -> list[str]:
    lines = ["", f"{'region (host time)':<26} {'mean':>9}   of the epochs that have it"]
    return lines + [f"{name:<26} {mean:>9.2f}" for name, mean in regions_ms.items()]


def _throughput(settings: dict[str, Any], epochs: Sequence[Epoch], bench: dict[str, Any]) -> list[str]:
    training = [e.step_ms for e in epochs if e.kind == "training" and not e.recorded]
    source = "without the profiler"
    if not training:
        training, source = [e.step_ms for e in epochs], "while profiled: no training epoch lay outside the window"
    step_s = statistics.median(training) / 1000
    samples = settings["workload"]["batch_size"] * settings.get("grad_accum", 1) * bench["world_size"]
    tokens = samples * settings["workload"]["seq_len"]
    return [
        f"step               {1000 * step_s:.2f} ms ({source})",
        f"samples/s          {samples / step_s:.1f}",
        f"tokens/s           {tokens / step_s:.1f}",
        f"final loss         {epochs[-1].loss:.4f}",
    ]
