"""Pipelines with a known schedule and known bubble, as the traces their stages would leave.

Stages compute exactly as scheduled, messages take `TRANSFER` microseconds, steps follow each other without a pause.
"""

from collections.abc import Sequence
from pathlib import Path

from tests.analyze.build import AUTOGRAD, RankTrace, built_run

from stepscope.run.load import Run

TRANSFER = 1.0
Order = list[tuple[str, int, int]]
"""`(F or B, stage, micro-batch)` in the order of one rank"""


def gpipe(stages: int, microbatches: int) -> list[Order]:
    each = range(microbatches)
    return [[*(("F", s, i) for i in each), *(("B", s, i) for i in each)] for s in range(stages)]


def one_f_one_b(stages: int, microbatches: int) -> list[Order]:
    orders = []
    for s in range(stages):
        warm = min(microbatches, stages - s)
        order: Order = [("F", s, i) for i in range(warm)]
        for i in range(microbatches):
            order.append(("B", s, i))
            if warm + i < microbatches:
                order.append(("F", s, warm + i))
        orders.append(order)
    return orders


def interleaved(stages: int, microbatches: int, chunks: int) -> list[Order]:
    """Breadth first: every chunk for all micro-batches forward, then all backward."""
    orders = []
    for r in range(stages):
        mine = [r + stages * c for c in range(chunks)]
        forward: Order = [("F", s, i) for s in mine for i in range(microbatches)]
        orders.append([*forward, *(("B", s, i) for s in reversed(mine) for i in range(microbatches))])
    return orders


def timed(
    orders: Sequence[Order], took: dict[str, float], work: Sequence[float] = ()
) -> list[list[tuple[float, float]]]:
    """Return `(start, end)` of every action: as soon as its rank is free and its input is there.

    `work` says how many times the usual work each stage has.
    """
    last = max(stage for order in orders for _, stage, _ in order)
    ends: dict[tuple[str, int, int], float] = {}
    out: list[list[tuple[float, float]]] = [[] for _ in orders]
    while any(len(done) < len(order) for done, order in zip(out, orders, strict=True)):
        for done, order in zip(out, orders, strict=True):
            if len(done) == len(order):
                continue
            kind, stage, i = order[len(done)]
            before = source((kind, stage, i), last)
            if before is not None and before not in ends:
                continue
            ready = ends[before] + (TRANSFER if before[1] != stage else 0) if before else 0.0
            start = max(done[-1][1] if done else 0.0, ready)
            end = start + took[kind] * (work[stage] if work else 1.0)
            done.append((start, end))
            ends[kind, stage, i] = end
    return out


def source(action: tuple[str, int, int], last: int) -> tuple[str, int, int] | None:
    kind, stage, i = action
    if kind == "F":
        return ("F", stage - 1, i) if stage else None
    return ("F", stage, i) if stage == last else ("B", stage + 1, i)


def pipeline_run(
    folder: Path, orders: Sequence[Order], *, forward: float = 200, backward: float = 400, steps: int = 3,
    marked: bool = False, scaled: bool = False,
) -> Run:  # fmt: skip
    """Return the run of these orders, one rank each; `scaled` ones scale gradients on the host after every backward."""
    spans = timed(orders, {"F": forward, "B": backward})
    length = max(end for span in spans for _, end in span)
    last = max(stage for order in orders for _, stage, _ in order)
    ranks = []
    for r, (order, span) in enumerate(zip(orders, spans, strict=True)):
        trace = RankTrace(r, world_size=len(orders), clock_offset_us=250 * r)
        for n in range(steps):
            at = n * length + 1000
            trace.step(n, at - 50, at + length - 50)
            for action, times in zip(order, span, strict=True):
                when = (at + times[0], at + times[1])
                place(trace, action, when, ranks=len(orders), last=last, marked=marked)
                if scaled and action[0] == "B":
                    scale_gradients(trace, when[0] + 100)
        # The device's last work of the step before: without it nobody knows when the first step began.
        before = 1000 + span[-1][1] - length
        trace.kernel("older", at=None, start=before - 20, end=before)
        ranks.append(trace)
    return built_run(folder, ranks)


def place(
    trace: RankTrace, action: tuple[str, int, int], span: tuple[float, float], *, ranks: int, last: int, marked: bool
) -> None:
    """Add one action with the messages before and after it, both already waited for."""
    kind, stage, i = action
    start, end = span
    before = source(action, last)
    if before is not None and before[1] != stage:
        trace.messages(("recv", before[1] % ranks), at=start - 12, start=start - TRANSFER, end=start)
    if kind == "F":
        part = (end - start) / 4
        for k in range(4):
            number = {"Sequence number": trace._new_id()}
            with trace.op("aten::mm", start - 4 + 6 * k, start + 1 + 6 * k, **number):
                trace.kernel("gemm", at=start - 3 + 6 * k, start=start + k * part, end=start + (k + 1) * part)
    else:
        trace.backward("MmBackward0", start - 4, start + 20)
        trace.kernel("gemm", at=start - 3, start=start, end=end, thread=AUTOGRAD)
    if marked:
        trace.annotation(f"PP:{stage}{kind}{i}", start - 5, start + 25)
    to = stage + 1 if kind == "F" else stage - 1
    if 0 <= to <= last:
        trace.messages(("send", to % ranks), at=start + 30, start=end, end=end + TRANSFER)


def scale_gradients(trace: RankTrace, at: float) -> None:
    """Add six kernels that the main thread launches between two backward passes and that are no forward."""
    number = {"Sequence number": trace._new_id()}
    for k in range(6):
        with trace.op("aten::div_", at + 5 * k, at + 5 * k + 4, **number):
            trace.kernel("div", at=at + 5 * k + 1, start=at + 50 + 5 * k, end=at + 54 + 5 * k, stream=8)
