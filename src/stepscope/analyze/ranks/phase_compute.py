"""How long does a rank compute in each phase of a step: its device, or the host where there is none?"""

import numpy as np

from stepscope.analyze.ranks.window import host_compute
from stepscope.analyze.step.phases import Passes, Phase
from stepscope.intervals import Intervals, clip, subtract, union
from stepscope.run.rank import Rank
from stepscope.trace.classify import EventKind


def phase_compute_ns(rank: Rank, found: Passes) -> dict[Phase, float] | None:
    """Return the mean per recorded step of the time with compute of each phase, None where phases are unknown.

    A kernel belongs to the phase in which the host launched it. Communication is no compute.
    """
    if not found.known or not len(rank.steps) or not len(found.backward):
        return None
    spans = _device_spans(rank, found) if rank.has_device else _host_spans(rank, found)
    return {phase: span.total_ns / len(rank.steps) for phase, span in spans.items()}


def _device_spans(rank: Rank, found: Passes) -> dict[Phase, Intervals]:
    work, trace = rank.work, rank.trace
    mine = np.flatnonzero((work.kind == EventKind.KERNEL) & (work.step >= 0) & (work.launch_row >= 0))
    launch = work.launch_row[mine]
    phase = found.at(trace["ts_ns"][launch], trace["tid"][launch])
    return {p: union(work.start_ns[mine[phase == p]], work.end_ns[mine[phase == p]]) for p in Phase}


def _host_spans(rank: Rank, found: Passes) -> dict[Phase, Intervals]:
    computed = clip(host_compute(rank), int(rank.steps.start_ns.min()), int(rank.steps.end_ns.max()))
    outside = subtract(computed, found.backward)
    between = subtract(outside, found.optimizer)
    phase = found.at(between.start, np.full(len(between), -1, np.int64))
    spans = {p: union(between.start[phase == p], between.end[phase == p]) for p in Phase}
    spans[Phase.BACKWARD] = subtract(computed, outside)
    spans[Phase.OPTIMIZER] = subtract(outside, between)
    return spans
