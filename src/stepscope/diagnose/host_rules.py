"""`host-stall`: the host does something else than training: garbage collection, logging, checkpoints, a lock."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.host_calls import Mask, host_calls
from stepscope.analyze.host_time import computing_operators
from stepscope.analyze.layers import COMPUTE_PART
from stepscope.analyze.owner_lines import LineWork, LoopLine, RankLines, loop_lines, loops, steady_stalls
from stepscope.analyze.phases import loop_in, trains
from stepscope.analyze.replay.changes import (
    at_any_factor,
    hidden_copies,
    save_ns,
    without_allocator,
    without_data_wait,
    without_recurring,
    without_state_saves,
    without_syncs,
    without_window_stalls,
)
from stepscope.analyze.replay.program import Program
from stepscope.analyze.replay.removal import Part, part_for, recorded_host, taken_out
from stepscope.analyze.replay.replay import Replay
from stepscope.analyze.stacks import Line
from stepscope.analyze.training_step import DATA_CAUSES, OUTSIDE
from stepscope.contract.step_line import ANOMALY_DETECTION, EVALUATE, Region
from stepscope.dataclass import dataclass
from stepscope.diagnose.finding import MIN_MOSTLY, Candidate, Evidence
from stepscope.diagnose.rule_measures import (
    at,
    common_ns,
    device_ms,
    evidence_of,
    host_ms,
    host_part_ns,
    lines_on_all,
    may_be_needed,
    named_cause,
    other_waits,
    ranks_with,
    stall_causes,
    transfers_to_device,
    typical_host_ns,
    waits_for_copies,
    without_lines,
)
from stepscope.diagnose.where import MAX_PLACES
from stepscope.intervals import EMPTY, Intervals, covered_ns, union, union_of
from stepscope.records import ArrayRecord
from stepscope.run.rank import Rank
from stepscope.run.step_log import StepLog
from stepscope.stats.robust import median
from stepscope.trace.classify import EventKind, by_string
from stepscope.units import ms


def _host_stall(account: Account) -> list[Candidate]:
    return [*(_named(account, cause) for cause in stall_causes(account)), *_unnamed(account)]


def _named(account: Account, cause: str) -> Candidate:
    said = named_cause(account, cause)
    return Candidate(
        id="host-stall",
        title=said.title,
        cause=said.cause,
        remedy=f"{said.remedy} The saving is this time gone.",
        change=lambda replay: without_recurring(replay, (cause,)),
        limit_ns=host_part_ns(account, "host_stall"),
        cost_ns=common_ns(account, (cause,)),
        evidence=evidence_of(account, (cause,)),
        sureness=0.5 if may_be_needed(account, cause) else 0.95,
    )


def _unnamed(account: Account) -> list[Candidate]:
    """Return long stretches in which the host ran no operator and asked for no data, and what recurs outside every
    region of the step log.
    """
    stalled, outside = _stalled_ns(account), common_ns(account, (OUTSIDE,))
    if not stalled + outside:
        return []
    cause = "for at least a millisecond at a time the host launches nothing and loads no data"
    if outside > stalled:
        cause = (
            "in some steps the host does something else for long, outside data loading, forward, backward and "
            "optimizer: checkpoints, evaluation, logging"
        )
    causes = (OUTSIDE,) if outside else ()
    return [
        Candidate(
            id="host-stall",
            title="The host stalls inside the step" if stalled >= outside else "The host stops in some steps",
            cause=cause,
            remedy="Look at what runs between the operators there (record with --stacks): gc.freeze() and gc.disable() with a "
            "collection every N steps, logging and checkpoints in a thread, no locks or sleeps in the loop. "
            "The saving is these stretches gone.",
            change=lambda replay: _without(replay, causes, window=stalled > 0),
            limit_ns=host_part_ns(account, "host_stall"),
            cost_ns=stalled + outside,
            evidence=(
                Evidence("stalled host time per step", host_ms(stalled), "ms", "median rank, ordinary steps"),
                *_computed(account),
                *evidence_of(account, (OUTSIDE,)),
            ),
            sureness=0.85,
        )
    ]


def _without(replay: Replay, causes: tuple[str, ...], *, window: bool) -> Replay:
    changed = without_recurring(replay, causes)
    return without_window_stalls(changed) if window else changed


def _stalled_ns(account: Account) -> float:
    """Return how long the usual rank's host stalls per step without a cause of its own.

    On ranks without a device whose lines are known, stalls in lines beside training are `work_beside_training`'s, and
    those that no line has in most steps, or that lie between the operators of the passes themselves, are of other programs
    on the same cores: nothing is left where these are most.
    """
    stalled = typical_host_ns(account, "stall_ns")
    if not stalled or any(rank.has_device for rank in account.run.ranks):
        return stalled
    known = [one for one in account.line_work if one is not None]
    if len(known) < len(account.run.ranks):
        return stalled
    left = np.quantile([_unexplained_ns(one) for one in known], 0.5, method="lower")
    return stalled if left >= MIN_MOSTLY * stalled else 0.0


def _unexplained_ns(known: RankLines) -> float:
    beside = np.zeros(len(known.owned.stacks) + 1, bool)
    for line in loop_lines(known):
        beside |= known.holding(line)
    others = known.sets.sums((~beside[:-1]).astype(np.int64))
    return sum(ns for line, ns in steady_stalls(known).items() if others[known.lines[line].number])


def _computed(account: Account) -> list[Evidence]:
    found: dict[str, int] = {}
    for view in account.run.ranks:
        for row in computing_operators(view).tolist():
            name = view.trace.strings[view.trace["name"][row]]
            found[name] = found.get(name, 0) + int(view.trace["dur_ns"][row])
    steps = max(account.num_steps, 1) * max(len(account.run.ranks), 1)
    longest = sorted(found.items(), key=lambda item: -item[1])[:2]
    return [Evidence("computed on the host per step", host_ms(ns / steps), "ms", name) for name, ns in longest]


# `host-stall`: autograd's anomaly detection was left on.
#
# It keeps a Python stack for every node of the graph, inside the operators of forward, which only the step log shows
# (`record/hooks/anomaly.py`), and looks for NaN in whatever a node returns, which the trace shows: operators directly
# inside the nodes that autograd evaluates.

_LOOKS = "aten::isnan"
_CHECK = frozenset((_LOOKS, "aten::_is_any_true", "aten::any", "aten::item", "aten::is_nonzero"))
_PIECE_NS = 100_000
# of the step: less is not said
_MIN_SHARE = 0.01


@dataclass(frozen=True, eq=False, repr=False)
class Looks(ArrayRecord):
    """When one rank looked for NaN in what nodes returned."""

    host: Intervals
    #: per step
    number: float
    #: per step
    ns: float


def anomaly_detection(account: Account) -> list[Candidate]:
    """Return that the detection is on, where the step log or most nodes of backward show it."""
    ranks, step = account.run.ranks, account.step
    if step is None or not ranks:
        return []
    logged = {log.rank: _kept_ns(log) for log in account.run.logs}
    looks = [_looks(rank) for rank in ranks]
    stacks_ns = float(np.mean([logged.get(rank.rank, 0.0) for rank in ranks]))
    looks_ns = float(np.mean([one.ns for one in looks]))
    if stacks_ns + looks_ns < _MIN_SHARE * step.step_ns:
        return []
    return [
        Candidate(
            id="host-stall",
            title="Autograd's anomaly detection is on",
            cause=f"it keeps a stack for every node of the graph ({ms(stacks_ns):.1f} ms per step, inside the operators "
            f"of forward) and looks for NaN in what every node of backward returns ({ms(looks_ns):.1f} ms)",
            remedy="torch.autograd.set_detect_anomaly(False), or take detect_anomaly() out of the loop: it is there to "
            "find a NaN, not to train with.",
            change=lambda replay: _anomaly_detection_without(replay, ranks, looks, stacks_ns),
            cost_ns=stacks_ns + looks_ns,
            evidence=(
                Evidence("stacks kept per step, by the step log", host_ms(stacks_ns), "ms", "in forward"),
                Evidence("looks for NaN per step", host_ms(looks_ns), "ms", "in backward"),
                Evidence("looks for NaN per step", float(np.mean([one.number for one in looks])), "", "in backward"),
            ),
            sureness=0.95,
            doubt=0.3,  # what torch does around each stack is not recorded
            claim=ANOMALY_DETECTION,
            what_if=(),
            subject="anomaly detection",
        )
    ]


def _anomaly_detection_without(
    replay: Replay, ranks: Sequence[Rank], looks: Sequence[Looks], stacks_ns: float
) -> Replay:
    forward = [loop_in(rank, Region.FORWARD) for rank in ranks]
    steps = max(sum(len(rank.steps) for rank in ranks), 1)
    took_ns = replay.host_factor * sum(int((spans.end - spans.start).sum()) for spans in forward) / steps
    # of forward goes with the stacks at most
    share = min(stacks_ns / took_ns, 0.95) if took_ns else 0.0
    gone = [union_of(one.host, _part_of_each(spans, share)) for one, spans in zip(looks, forward, strict=True)]
    return taken_out(replay, [_part(rank, host) for rank, host in zip(ranks, gone, strict=True)])


def _part_of_each(spans: Intervals, share: float) -> Intervals:
    starts = [np.arange(start, end, _PIECE_NS) for start, end in zip(spans.start, spans.end, strict=True)]
    start = np.concatenate([*starts, np.empty(0, np.int64)]).astype(np.int64)
    end = np.minimum(start + _PIECE_NS, np.repeat(spans.end, [len(one) for one in starts]))
    return union(start, start + np.rint(share * (end - start)).astype(np.int64))


def _part(rank: Rank, host: Intervals) -> Part:
    calls = np.flatnonzero(rank.kinds == EventKind.RUNTIME)
    start = rank.trace["ts_ns"][calls]
    inside = covered_ns(host, start, start + 1) > 0
    return Part(host, EMPTY, np.zeros(len(rank.work), bool), np.zeros(len(rank.collectives), bool), calls[inside])


def _kept_ns(log: StepLog) -> float:
    stacks = np.nan_to_num(log.column(f"regions.{ANOMALY_DETECTION}.ns"))[log.unprofiled]
    return float(stacks.mean()) if len(stacks) else 0.0


def _looks(rank: Rank) -> Looks:
    trace = rank.trace
    if not len(rank.rows_named(lambda name: name == _LOOKS, EventKind.HOST_OP)):  # as in most jobs
        return Looks(EMPTY, 0.0, 0.0)
    calls = host_calls(rank)
    is_look = by_string(trace, calls.name, lambda name: name == _LOOKS).astype(bool)
    is_node = by_string(trace, calls.name, lambda name: name.startswith(EVALUATE)).astype(bool)
    is_check = by_string(trace, calls.name, lambda name: name in _CHECK).astype(bool)
    direct = is_check & (calls.parent >= 0) & is_node[calls.parent]
    looked = np.zeros(len(calls), bool)
    looked[calls.parent[direct & is_look]] = True
    # of the nodes hold a look for NaN; a job's own hooks may look in some
    if not looked.any() or looked.sum() < 0.5 * is_node.sum():
        return Looks(EMPTY, 0.0, 0.0)
    chosen = direct & looked[calls.parent]
    inside = chosen & (rank.steps.of(calls.start_ns) >= 0)
    steps = max(len(rank.steps), 1)
    took = float((calls.end_ns - calls.start_ns)[inside].sum()) / steps
    host = union(calls.start_ns[chosen], calls.end_ns[chosen])
    return Looks(host, float((inside & is_look).sum()) / steps, took)


# `host-device-sync`: .item(), .cpu(), synchronize and the like block the host inside the step.


def host_device_sync(account: Account) -> list[Candidate]:
    """Return synchronisations that made the host wait, other than those of copies to the device."""
    replay = account.replay
    if replay is None or account.step is None or not all(r.has_device for r in account.run.ranks):
        return []
    per_step = median(other_waits(account)) / max(len(replay.steps), 1)
    if not per_step:
        return []
    return [
        Candidate(
            id="host-device-sync",
            title="The host waits for the device inside the step",
            cause="a synchronisation empties the queue, and the device idles until the host has launched again",
            remedy="Keep values on the device (loss.detach() instead of loss.item(), torch.where instead of if), log every N steps, "
            "use non_blocking copies from pinned memory. The saving is of the step without these waits.",
            change=at_any_factor(without_syncs),
            cost_ns=account.step.ns("host_sync"),
            evidence=(
                Evidence("synchronisations per step", round(per_step, 1), "calls", "median rank"),
                Evidence("device idle after them per step", host_ms(account.step.ns("host_sync")), "ms"),
            ),
            doubt=0.3,
        )
    ]


# `host-device-sync` by line: what is computed for the host alone, in every step.


def host_statistics(account: Account) -> list[Candidate]:
    """Return lines that bring results to the host, and to nothing else: statistics and logs."""
    return [_candidate(account, line) for line in lines_on_all(account, _is_statistic)]


def _is_statistic(rank: RankLines, work: LineWork) -> bool:
    return work.apart and work.to_host > 0 and not work.in_place and not work.collectives


def _candidate(account: Account, line: Line) -> Candidate:
    place = f"{line[0]}:{line[1]}"
    copies, took, steps = 0, 0, 0
    for known in ranks_with(account, line):
        copies += known.lines[line].to_host
        took += known.lines[line].device_ns
        steps += max(len(known.owned.rank.steps), 1)
    return Candidate(
        id="host-device-sync",
        title=f"{place} brings results to the host in every step",
        cause=f"the host waits in {place} for {copies / steps:.0f} copies per step and computes with them; no gradient, "
        "parameter or input of the device comes of it",
        remedy="Do it every N steps, or reduce on the device and copy one number later (non_blocking). The saving is "
        "of the step without this line.",
        change=without_lines(account, [line]),
        evidence=(
            Evidence("copies to the host per step", round(copies / steps, 1), "copies", place),
            Evidence("device time of the line per step", host_ms(took / steps), "ms", place),
        ),
        where=(at(line),),
        what_if=("--without", place),
        subject=f"bringing results to the host ({place})",
    )


# `host-stall` by line: what the loop does in every step that is no pass of the model.
#
# Where the host is the device nothing idles while it copies weights, hashes, sorts or writes, so no gap shows it. On a
# device, statistics and copies are kernels like any other. Only the lines tell (`analyze/owners/loop_lines.py`).

# of a line's time is in a line that it calls: that one is named
_NEARLY_ALL = 0.9


def work_beside_training(account: Account) -> list[Candidate]:
    """Return the lines, or loops of lines, that most ranks run beside training."""
    known = [one for one in account.line_work if one is not None]
    if account.step is None or not known:
        return []
    least = _MIN_SHARE * account.step.step_ns
    found: dict[Line, list[tuple[Line, ...]]] = defaultdict(list)
    for one in known:
        steady = [line for line in loop_lines(one).values() if line.typical_ns > 0]
        for group in loops(steady, [line for line, work in one.lines.items() if not work.apart]):
            if sum(line.longer_ns for line in group) >= least:
                largest = max(group, key=lambda line: line.longer_ns)
                found[largest.line].append(tuple(line.line for line in group))
    return [
        _work_beside_training_candidate(account, groups[0]) for groups in found.values() if 2 * len(groups) > len(known)
    ]


def _work_beside_training_candidate(account: Account, lines: tuple[Line, ...]) -> Candidate:
    ranks = [known for known in account.line_work if known is not None and any(line in known.lines for line in lines)]
    each = [[loop_lines(one)[line] for line in lines if line in loop_lines(one)] for one in ranks]
    # times what a line takes in the median step is the most that it claims: the rest is of few steps, a machine that had
    # other things to do
    took = [sum(min(line.mean_ns, 2.0 * line.typical_ns) for line in mine) for mine in each]
    on_device = [sum(line.device_ns for line in mine) for mine in each]
    first = next(mine[0] for mine in each if mine)
    places = _places(each, lines)
    if len(lines) == 1:
        lines = (places[0][0],)
    place, host_ns, device_ns = _work_beside_training_named(lines), float(np.mean(took)), float(np.mean(on_device))
    called = _called(ranks, lines)
    below = f", mostly in {called[0][0]}" if called and called[0][1] >= MIN_MOSTLY * host_ns else ""
    beside = f" and {ms(device_ns):.1f} ms of the device" if device_ns else ""
    workers = " or in the loader's workers (it stands before forward and may prepare the input)"
    elsewhere = "" if beside else f", in another thread{workers if first.before_forward else ''}"
    changes = any(line.in_place for mine in each for line in mine)
    title, why, remedy = (
        f"{place} works beside training in every step",
        "it is no part of forward, backward, optimizer or loader, and no gradient goes through it",
        f"Do it every N steps{elsewhere}, or delete it: whether training needs it the trace cannot tell.",
    )
    if first.of_gradients:
        title, why, remedy = (
            f"{place} runs on gradients inside every backward",
            "backward calls it, as a hook; it changed nothing in place",
            "Where it only looks at gradients, do it every N steps or delete it. Where it returns another gradient, do "
            "that once after backward for all of them (torch.nn.utils.clip_grad_norm_): the trace cannot tell which it is.",
        )
    return Candidate(
        id="host-stall",
        title=title,
        cause=f"{place} takes {ms(host_ns):.1f} ms{' of the host' if beside else ''} per step{beside}{below}; {why}",
        remedy=f"{remedy} The saving is of the step without it; every N steps saves all but one Nth of that.",
        change=without_lines(account, lines),
        limit_ns=max(map(sum, zip(took, on_device, strict=True))),
        claim=place,
        cost_ns=max(host_ns, device_ns),
        evidence=(
            Evidence("host time beside training per step", host_ms(host_ns), "ms", place),
            *((Evidence("device time of the line per step", host_ms(device_ns), "ms", place),) if beside else ()),
            *(Evidence("of that in what it calls", host_ms(ns), "ms", name) for name, ns in called),
        ),
        sureness=0.6 if changes or first.before_forward or first.of_gradients else 0.7,
        where=tuple(at(line, share=share) for line, share in places[:MAX_PLACES]),
        what_if=("--without", place),
        on_device=device_ns > host_ns,
        subject=f"{'work on gradients' if first.of_gradients else 'work beside training'} ({place})",
    )


def _work_beside_training_named(lines: Sequence[Line]) -> str:
    (file, first), (_, last) = lines[0], lines[-1]
    return f"{file}:{first}" if first == last else f"{file}:{first}-{last}"


def _places(each: Sequence[Sequence[LoopLine]], lines: Sequence[Line]) -> list[tuple[Line, float]]:
    """Return the lines of a loop, the largest first; of a single line what it calls: the innermost line that holds
    nearly all of its time, the line itself, and others that hold much of it.
    """
    if len(lines) > 1:
        return _shares(each, lines)
    inside = next(mine[0].inside for mine in each if mine)
    whole = [line for line, share in inside.items() if share >= _NEARLY_ALL]
    others = sorted((line for line in inside if line not in whole), key=lambda line: -inside[line])
    named = [(line, inside[line]) for line in whole[-1:]] + [(lines[0], 1.0)]
    return named + [(line, inside[line]) for line in others if inside[line] >= 0.25]


def _shares(each: Sequence[Sequence[LoopLine]], lines: Sequence[Line]) -> list[tuple[Line, float]]:
    took = {line: sum(one.typical_ns for mine in each for one in mine if one.line == line) for line in lines}
    total = max(sum(took.values()), 1.0)
    return sorted(((line, ns / total) for line, ns in took.items()), key=lambda item: -item[1])


def _called(ranks: Sequence[RankLines], lines: Sequence[Line]) -> list[tuple[str, float]]:
    found: dict[str, float] = defaultdict(float)
    for known in ranks:
        owned, steps = known.owned, max(len(known.owned.rank.steps), 1)
        holds = np.zeros(len(owned.stacks) + 1, bool)
        for line in lines:
            if line in known.lines:
                holds |= known.holding(line)
        for name, ns in [*_functions(known, holds, set(lines)), *_operators(known, holds)]:
            found[name] += ns / steps / len(ranks)
    total = max(found.values(), default=0.0)
    largest = sorted(found.items(), key=lambda item: -item[1])[:3]
    # of the line's time: what is called less is not named
    return [(name, ns) for name, ns in largest if ns >= 0.1 * total]


def _operators(known: RankLines, holds: np.ndarray) -> list[tuple[str, float]]:
    owned = known.owned
    calls, strings = owned.calls, owned.rank.trace.strings
    mine = holds[owned.by_call.stack] & (calls.parent < 0) & (owned.rank.steps.of(calls.start_ns) >= 0)
    names, at_ = np.unique(calls.name[mine], return_inverse=True)
    took = np.bincount(at_, (calls.end_ns - calls.start_ns)[mine], minlength=len(names))
    return [(strings[name], float(ns)) for name, ns in zip(names.tolist(), took.tolist(), strict=True)]


def _functions(known: RankLines, holds: np.ndarray, lines: set[Line]) -> list[tuple[str, float]]:
    owned = known.owned
    host = owned.host
    mine = holds[host.owner.stack] & host.is_python & host.runs & (owned.rank.steps.of(host.start_ns) >= 0)
    took = np.bincount(host.owner.stack[mine], (host.end_ns - host.start_ns)[mine], minlength=len(owned.stacks))
    found = []
    for stack in np.flatnonzero(took).tolist():
        frame = owned.frames[owned.stacks.innermost[stack]]
        if (frame.file, frame.line) not in lines:
            found.append((f"{frame.function} ({frame.file.rsplit('/', 1)[-1]}:{frame.line})", float(took[stack])))
    return found


# `allocator`: the step gets and returns device memory (cudaMalloc, cudaFree, retries).


def allocator(account: Account) -> list[Candidate]:
    """Return the time the usual rank's host spent in calls for device memory."""
    spent = typical_host_ns(account, "allocator_ns")
    if not spent:
        return []
    return [
        Candidate(
            id="allocator",
            title="Device memory is allocated and freed inside the step",
            cause="cudaMalloc and cudaFree block the host and the device; a caching allocator calls them only at first",
            remedy="Remove torch.cuda.empty_cache() from the loop; set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; keep "
            "shapes constant or pad them; lower the peak so that the cache is not flushed. The saving is these calls gone.",
            change=without_allocator,
            cost_ns=spent,
            evidence=(Evidence("time in allocation calls per step", host_ms(spent), "ms", "median rank"),),
        )
    ]


# `data-loading`: the step waits for input on all ranks (one rank alone is a straggler).

_MAX_LINES = 3


def data_loading(account: Account) -> list[Candidate]:
    """Return the wait for input, where the usual rank has one: in the window's steps, or in others of the log."""
    waited, restarts = typical_host_ns(account, "data_ns"), common_ns(account, DATA_CAUSES)
    if not waited + restarts:
        return []
    cause = "the host asks for the next batch and the batch is not ready"
    if restarts > waited:
        cause = "in some steps the loader is started again or has no batch ready, and training stands still meanwhile"
    return [
        Candidate(
            id="data-loading",
            title="The step waits for its input",
            cause=cause,
            remedy="Prefetch: DataLoader(num_workers=4 or more, prefetch_factor=4, persistent_workers=True, pin_memory=True); "
            "move decoding and augmentation out of the loop, or cache them. The saving is this wait gone from the step.",
            change=without_data_wait,
            limit_ns=host_part_ns(account, "data_loading"),
            cost_ns=waited + restarts,
            evidence=(
                Evidence("host time in the data loader per step", host_ms(waited), "ms", "median rank, ordinary steps"),
                *evidence_of(account, DATA_CAUSES),
                *_dataset_lines(account),
            ),
            sureness=0.95,
        )
    ]


def _dataset_lines(account: Account) -> list[Evidence]:
    sampled = [owners.loader for owners in account.run.owners if owners.loader]
    shares: dict[str, float] = {}
    for lines in sampled:
        for place, share in lines:
            shares[place] = shares.get(place, 0.0) + share / len(sampled)
    largest = sorted(shares.items(), key=lambda item: -item[1])[:_MAX_LINES]
    return [
        Evidence(f"in {place}", round(100 * share, 1), "% of the time of the loader's workers in the user's code")
        for place, share in largest
        if share >= 0.1
    ]


# `host-to-device-copy`: copies to the device from pageable memory, or not overlapped with compute.

_AHEAD = "Copy one batch ahead on a stream of its own, with tensor.to(device, non_blocking=True)"
_PIN = (
    "pin_memory=True in the DataLoader and tensor.to(device, non_blocking=True), one batch ahead on a stream of its own"
)
_ONCE = "Make what does not change once, on the device, and copy with non_blocking=True"
# copies per step that the host waits for; from so many on, to make one of them is the first thing to do
_MANY = 4


def host_to_device_copy(account: Account) -> list[Candidate]:
    """Return the copies to the device as a cost, with the host's waiting for them."""
    chosen = transfers_to_device(account)
    copying = device_ms(account, chosen)
    if not copying:
        return []
    pageable = _mostly_pageable(account, chosen)
    waits = _waits_per_step(account)
    evidence = [Evidence("host-to-device copies per step", round(copying, 3), "ms", "mean rank")]
    if waits:
        evidence.append(Evidence("copies that the host waits for, per step", round(waits, 1), "calls", "median rank"))
    return [
        Candidate(
            id="host-to-device-copy",
            title="The step waits for copies to the device",
            cause=_cause(pageable=pageable, waits=waits > 0),
            remedy=_remedy(pageable=pageable, waits=waits),
            change=at_any_factor(lambda replay: hidden_copies(replay, chosen)),
            cost_ns=copying * 1e6,
            limit_ns=_besides_compute_ns(account),
            evidence=tuple(evidence),
        )
    ]


def _waits_per_step(account: Account) -> float:
    if account.replay is None:
        return 0.0
    return median(waits_for_copies(account)) / max(len(account.replay.steps), 1)


def _besides_compute_ns(account: Account) -> float | None:
    step = account.step
    return None if step is None else step.step_ns - sum(step.ns(part) for part in COMPUTE_PART.values())


def _remedy(*, pageable: bool, waits: float) -> str:
    parts = [f"{_PIN if pageable or waits else _AHEAD}; send smaller types"]
    if waits:
        parts.insert(len(parts) if pageable else 0, _ONCE)
    if waits >= _MANY:
        parts.insert(0, "Bring what belongs together in one copy")
    return f"{'. '.join(parts)}. The saving is of the step without these copies and without waiting for them."


def _cause(*, pageable: bool, waits: bool) -> str:
    if pageable:
        return "the source is pageable memory, so the copy blocks the host"
    return (
        "the host waits for each until all that was launched before it is done"
        if waits
        else "copies run alone, not beside compute"
    )


def _mostly_pageable(account: Account, chosen: Sequence[Mask]) -> bool:
    by_source = {True: 0, False: 0}
    for rank, mask in zip(account.run.ranks, chosen, strict=True):
        work = rank.work
        for name in set(work.name[mask].tolist()):
            mine = mask & (work.name == name)
            spent_ns = int((work.end_ns[mine] - work.start_ns[mine]).sum())
            by_source["Pageable" in (rank.trace.text(name) or "")] += spent_ns
    return by_source[True] > by_source[False]


# `host-to-device-copy` by line: a line whose copies to the device come with stalls of the host.
#
# Large batches in pageable memory cost the host beside the copy: it moves the data into a buffer that the device can
# read, and gives the memory back when the batch is dropped. Those stalls go with the copies: one line, one finding. A
# line
# that stalls for longer than it copies has another cause.


def copying_lines(account: Account) -> list[Candidate]:
    """Return the line that holds most of the copies to the device and most of the host's stalls."""
    replay, step = account.replay, account.step
    if replay is None or step is None or not step.step_ns:
        return []
    # of the step: of the copies and of the stalls each
    least = 0.05 * step.step_ns
    whole_copies = device_ms(account, transfers_to_device(account)) * 1e6
    found = []
    for line in lines_on_all(account, _only_copies):
        ranks = zip(account.line_work, replay.programs, strict=True)
        stalled, all_stalls = np.mean(
            [_copying_lines_stalled_ns(k, p, replay, line) for k, p in ranks], axis=0
        ).tolist()
        share = _copied_share(account, line)
        copied = share * whole_copies
        mostly = share >= MIN_MOSTLY and stalled >= MIN_MOSTLY * all_stalls
        if mostly and min(copied, stalled) >= least and copied >= MIN_MOSTLY * stalled:
            found.append(_copying_lines_candidate(account, line, copied, stalled))
    return found


def _only_copies(_: RankLines, work: LineWork) -> bool:
    return work.to_device > 0 and not (work.has_backward or work.optimizes or work.modules or work.collectives)


def _copied_share(account: Account, line: Line) -> float:
    mine = whole = 0
    for known, mask in zip(account.line_work, transfers_to_device(account), strict=True):
        if known is None:
            continue
        work = known.owned.rank.work
        took = (work.end_ns - work.start_ns) * (mask & (work.step >= 0))
        whole += int(took.sum())
        if line in known.lines:
            mine += int(took[known.holding(line)[known.owned.by_work.stack]].sum())
    return mine / whole if whole else 0.0


def _copying_lines_stalled_ns(
    known: RankLines | None, program: Program, replay: Replay, line: Line
) -> tuple[float, float]:
    if known is None or not len(program):
        return 0.0, 0.0
    edges, did = recorded_host(known.owned.rank, program, replay.steps)
    whole = float(did.parts(edges[:-1], edges[1:]).stall_ns.sum())
    if line not in known.lines:
        return 0.0, whole / len(replay.steps)
    holds = known.holding(line)
    part = part_for(known.owned, lambda _, things: holds[things.stack])
    mine = float(did.parts_within(part.host, edges[:-1], edges[1:]).stall_ns.sum())
    return mine / len(replay.steps), whole / len(replay.steps)


def _copying_lines_candidate(account: Account, line: Line, copied_ns: float, stalled_ns: float) -> Candidate:
    place = f"{line[0]}:{line[1]}"
    return Candidate(
        id="host-to-device-copy",
        title=f"{place} copies to the device, and the host stalls there",
        cause="the step waits for these copies, and beside them the host launches nothing for at least a millisecond at a "
        "time; with large batches in pageable memory, moving them and giving their memory back is the usual reason",
        remedy="pin_memory=True in the DataLoader and tensor.to(device, non_blocking=True), one batch ahead on a stream of its "
        "own; send smaller types and convert on the device. The saving is of the step without this line.",
        change=without_lines(account, [line]),
        evidence=(
            Evidence("host-to-device copies of the line per step", host_ms(copied_ns), "ms", place),
            Evidence("stalled host time in the line per step", host_ms(stalled_ns), "ms", place),
        ),
        where=(at(line),),
        what_if=("--without", place),
        subject=f"copying to the device ({place})",
    )


# `host-stall` with what belongs to it: state that is copied to the host, which stops training as much as the writing.


def host_stall_and_saves(account: Account) -> list[Candidate]:
    """Return the host's stalls; where training saves its state, the last of them with the copies to the host. What a
    job that does not train copies there are its results.
    """
    found = _host_stall(account)
    saving = save_ns(account.replay) if account.replay is not None and trains(account.strategy.passes) else 0.0
    if not saving:
        return found
    others, stall = (found[:-1], found[-1]) if found else ([], _NO_STALL)
    stalled = stall.change

    def without_both(replay: Replay) -> Replay:
        return without_state_saves(stalled(replay) if stalled is not None else replay)

    both = replace(
        stall,
        title="State is saved inside the step",
        cause="many tensors in a row are copied to the host, and nothing is computed meanwhile: a checkpoint",
        remedy="Save less often, or in the background: torch.distributed.checkpoint.async_save, or copy the state to "
        "pinned memory and write it in a thread. The saving is this time gone.",
        change=without_both,
        cost_ns=(stall.cost_ns or 0.0) + saving,
        evidence=(
            Evidence("copies of state and the host between them, per step", host_ms(saving), "ms"),
            *stall.evidence,
        ),
    )
    return [*others, both]


_NO_STALL = Candidate(id="host-stall", title="", cause="", remedy="", sureness=0.85)
