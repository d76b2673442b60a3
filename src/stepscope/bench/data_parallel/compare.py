"""The job that compares implementations: interleaved runs, the same outcome checked, a short trace of each.

    settings   {"workload": {...}, "series": [{"name", "implementation", "options"}], "warmup_steps", "steps", "runs",
                "grad_accum", "trace_steps"}
    records    {"what": "samples", "series", "run", ...Samples}        {"what": "agreement", "series", ...Agreement}
               {"what": "size", "series", "parameters", ...}           {"what": "repeated", ...}: the reference again
               {"what": "trace", "series", "path"}

Every run measures all contenders one after the other and the next run begins with another one, so that a machine that
slows down, or warms up, does so for all of them.
"""

from collections.abc import Sequence
from typing import Any

import torch

from stepscope.bench.data_parallel.agreement import Outcome, agreement
from stepscope.bench.data_parallel.contender import Contender, clear_memory
from stepscope.bench.data_parallel.training import Training
from stepscope.bench.session.measure import Samples, measure
from stepscope.bench.session.rank import Bench
from stepscope.bench.session.trace import record_steps


def compare(bench: Bench, settings: dict[str, Any]) -> None:
    """Measure every contender of the settings on this rank."""
    contenders = [Contender.of(settings, series) for series in settings["series"]]
    reference: list[Outcome] = []
    for run in range(int(settings["runs"])):
        for contender in _rotated(contenders, by=run):
            clear_memory(bench)
            check = _check(run, is_reference=contender is contenders[0])
            samples = _measure_run(bench, contender, settings, reference, check=check)
            bench.emit(what="samples", series=contender.name, run=run, **samples.as_dict())
    if settings.get("trace_steps"):
        for contender in contenders:
            clear_memory(bench)
            _record_trace(bench, contender, steps=int(settings["trace_steps"]))


def _rotated(contenders: Sequence[Contender], *, by: int) -> list[Contender]:
    """Return all contenders, beginning with another one in each run; the first run begins with the reference.

    >>> _rotated("abc", by=1)
    ['b', 'c', 'a']
    """
    first = by % len(contenders)
    return [*contenders[first:], *contenders[:first]]


def _check(run: int, *, is_reference: bool) -> str | None:
    return "agreement" if run == 0 else "repeated" if run == 1 and is_reference else None


def _measure_run(
    bench: Bench, contender: Contender, settings: dict[str, Any], reference: list[Outcome], *, check: str | None
) -> Samples:
    training = contender.training(bench)
    gradients = training.first_gradients() if check else None
    samples = measure(
        training.step,
        warmup_steps=max(contender.warmup_steps - bool(check), 0),  # taking the gradients was one of them
        steps=int(settings["steps"]),
        device=bench.device,
        fed=training.fed,
    )
    if check:
        count = sum(w.numel() for w in training.parallel.model.parameters())
        bench.emit(what="size", series=contender.name, parameters=count)
        _check_outcome(
            bench, contender, Outcome(gradients, _weights(training), samples.losses, training.number), reference, check
        )
    return samples


def _weights(training: Training) -> dict[str, torch.Tensor]:
    return {name: w.float().cpu().clone() for name, w in training.parallel.weights().items()}


def _check_outcome(bench: Bench, contender: Contender, found: Outcome, reference: list[Outcome], what: str) -> None:
    if bench.rank:
        return
    if not reference:
        reference.append(found)
    judged = agreement(found, reference[0], precision=contender.workload.precision)
    bench.emit(what=what, series=contender.name, **judged.as_dict())


def _record_trace(bench: Bench, contender: Contender, *, steps: int) -> None:
    folder = bench.out / "traces" / contender.name
    path = record_steps(
        lambda mark: contender.training(bench, mark=mark).step,
        path=folder / f"{contender.name}_rank_{bench.rank}_trace.json",
        steps=steps,
        device=bench.device,
    )
    bench.emit(what="trace", series=contender.name, path=str(path.relative_to(bench.out)))
