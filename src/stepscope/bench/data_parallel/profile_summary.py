"""The summary of a profiled implementation as plain text: configuration, times per phase, throughput, operators."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Epoch:
    """One epoch of training."""

    number: int
    #: warm-up or training
    kind: str
    lr: float
    loss: float
    step_ms: float
    #: while the profiler was on
    recorded: bool


class Throughput(NamedTuple):
    """What the whole job took in, and how long a training step took; None where the batches do not tell."""

    step_ms: float
    source: str
    samples_per_s: float | None
    tokens_per_s: float | None


def throughput(epochs: Sequence[Epoch], *, samples: float | None, tokens: float | None) -> Throughput:
    """Return the throughput of the training epochs, given samples and tokens of the whole job in one of them.

    The warm-up never counts: its first epoch sets things up. Epochs under the profiler count where there are no others.
    """
    training = [e for e in epochs if e.kind == "training"]
    quiet = [e.step_ms for e in training if not e.recorded]
    source = "without the profiler" if quiet else "while profiled: no training epoch lay outside the window"
    step_ms = statistics.median(quiet or [e.step_ms for e in training])
    rates = (None if count is None else 1000 * count / step_ms for count in (samples, tokens))
    return Throughput(step_ms, source, *rates)


def summary_text(
    settings: dict[str, Any],
    epochs: Sequence[Epoch],
    *,
    rates: Throughput,
    regions_ms: dict[str, float],
    operators: str,
    bench: dict[str, Any],
) -> str:
    """Return the whole summary."""
    parts = [
        f"Profile of {settings['implementation']}",
        _titled("Configuration", _configuration(settings, bench)),
        _titled("Step time per phase (ms)", [*_phases(epochs), *_regions(regions_ms)]),
        _titled("Throughput", _throughput(rates, epochs)),
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


def _throughput(rates: Throughput, epochs: Sequence[Epoch]) -> list[str]:
    return [
        f"step               {rates.step_ms:.2f} ms ({rates.source})",
        f"samples/s          {_rate(rates.samples_per_s)}",
        f"tokens/s           {_rate(rates.tokens_per_s)}",
        f"final loss         {epochs[-1].loss:.4f}",
    ]


def _rate(value: float | None) -> str:
    return "unknown: the batches do not tell" if value is None else f"{value:.1f}"
