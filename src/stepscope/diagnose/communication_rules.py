"""`communication-bound` as far as it is known: where messages are narrow already, and where only one rank tells."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from stepscope.analyze.account import Account
from stepscope.analyze.kernel_costs import abilities
from stepscope.analyze.owner_lines import LineWork, RankLines
from stepscope.analyze.ownership import OwnedWork, Ownership
from stepscope.analyze.phases import trains
from stepscope.analyze.replay.changes import with_transfer_times, without_work
from stepscope.analyze.replay.communication_changes import (
    GOOD_MESSAGE_BYTES,
    GRADIENT_OPS,
    fewer_bytes,
    larger_messages,
    without_collectives,
)
from stepscope.analyze.replay.program import NOTHING
from stepscope.analyze.replay.removal import NO_PART, Choose, Part, part_for
from stepscope.analyze.replay.replay import Replay
from stepscope.analyze.stacks import Line, Mask
from stepscope.contract.collectives import OP_CODE
from stepscope.contract.step_line import Region
from stepscope.diagnose.examined import sixteen_bit_messages
from stepscope.diagnose.finding import Candidate, Evidence, Where
from stepscope.diagnose.rule_measures import (
    at,
    communicates,
    gradient_groups_only,
    group_rows,
    host_ms,
    lines_on_all,
    not_computing_ns,
    ranks_with,
    without_lines,
    without_parts,
)
from stepscope.diagnose.where import costs_by_owner, places, top_modules, user_lines
from stepscope.records import once_per_record
from stepscope.run.device_work import enclosing
from stepscope.run.matching import POINT_TO_POINT
from stepscope.run.rank import Rank
from stepscope.stats.distinct import among, distinct
from stepscope.stats.robust import median
from stepscope.trace.classify import EventKind
from stepscope.trace.nccl import NcclLog

# `redundant-communication`: gradients synchronised in every micro-batch of an accumulated step.


def redundant_communication(account: Account) -> list[Candidate]:
    """Return the collectives of a step that the same step repeats later."""
    if account.replay is None or not gradient_groups_only(account):
        return []
    found = [_repeated(rank) for rank in account.run.ranks]
    times = min((n for _, n in found), default=1)
    if times < 2:
        return []
    dropped = [mask for mask, _ in found]
    bucket_work = [_bucket_work(rank, mask) for rank, mask in zip(account.run.ranks, dropped, strict=True)]
    size = sum(int(r.collectives.full_bytes[m].sum()) for r, m in zip(account.run.ranks, dropped, strict=True))
    steps = sum(max(len(r.steps), 1) for r in account.run.ranks)
    return [
        Candidate(
            id="redundant-communication",
            title=f"Gradients are synchronised {times} times per step",
            cause="each micro-batch of an accumulated step synchronises the same gradients",
            remedy="Run all but the last micro-batch under model.no_sync() (DDP) or with model.set_requires_gradient_sync(False) (FSDP2). "
            "The saving is of one synchronisation per step.",
            change=lambda replay: without_work(without_collectives(replay, dropped), bucket_work),
            evidence=(
                Evidence("synchronisations of the same gradients per step", times, "times"),
                Evidence("bytes sent needlessly per step", round(size / steps), "bytes", "mean rank"),
            ),
            doubt=0.3,
        )
    ]


def _needed_share(account: Account) -> float:
    if account.replay is None or not gradient_groups_only(account):
        return 1.0
    found = [(rank.collectives.full_bytes, *_repeated(rank)) for rank in account.run.ranks]
    sent = sum(int(np.maximum(size, 0).sum()) for size, _, _ in found)
    again = sum(int(np.maximum(size[mask], 0).sum()) for size, mask, _ in found)
    return 1 - again / sent if sent and min((n for _, _, n in found), default=1) > 1 else 1.0


@once_per_record
def _repeated(rank: Rank) -> tuple[npt.NDArray[np.bool_], int]:
    c = rank.collectives
    mask = np.zeros(len(c), bool)
    rows = group_rows(rank)
    rows = rows[among(c.op[rows], GRADIENT_OPS)]
    alike = list(zip(*(column[rows].tolist() for column in (c.op, c.group, c.full_bytes)), strict=True))
    of_step: defaultdict[int, list[int]] = defaultdict(list)
    for row, step in enumerate(c.step[rows].tolist()):
        of_step[step].append(row)
    times = []
    for mine in of_step.values():
        period = _period([alike[row] for row in mine])
        times.append(len(mine) // period)
        mask[rows[mine[: len(mine) - period]]] = times[-1] > 1
    return mask, min(times, default=1)


def _bucket_work(rank: Rank, dropped: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return the device work that moves gradients in and out of buckets for the dropped collectives.

    The reducer of DistributedDataParallel marks it; in each step it belongs to the last synchronisation once the
    first collective of that one has been prepared, before that to a dropped one.
    """
    work, c = rank.work, rank.collectives
    # ranges and operators in which a wrapper fills its buckets, sends them and takes them apart again
    marks = rank.rows_named(
        lambda s: any(mark in s for mark in ("reducer::", "FSDP::post_backward_reduce")),
        EventKind.HOST_OP,
        EventKind.ANNOTATION,
    )
    launched = np.flatnonzero((work.launch_row >= 0) & (work.step >= 0))
    out = np.zeros(len(work), bool)
    if not len(marks) or not dropped.any():
        return out
    inside = enclosing(rank.trace, marks, work.launch_row[launched]) >= 0
    last_dropped = np.full(len(rank.steps), np.iinfo(np.int64).min)
    np.maximum.at(last_dropped, c.step[dropped], c.issue_ns[dropped])
    early = rank.trace["ts_ns"][work.launch_row[launched]] <= last_dropped[work.step[launched]]
    out[launched] = inside & early
    return out


def _period(sequence: list[tuple[int, int, int]]) -> int:
    """Return the shortest length of which the sequence is a whole number of repeats.

    One size over and over is no repeat of a step's gradients but equal buckets: a period has two sizes at least.
    """
    n = len(sequence)
    for length in range(2, n // 2 + 1):
        if n % length == 0 and sequence == sequence[:length] * (n // length) and len(set(sequence[:length])) > 1:
            return length
    return max(n, 1)


# `redundant-communication` by the training wrapper: what it broadcasts in every forward pass, buffers in the first
# place.


def wrapper_broadcasts(account: Account) -> list[Candidate]:
    """Return the broadcasts of a data-parallel wrapper's forward, with everything that is done for them as the cost."""
    masks = broadcasts_in_forward(account)
    known = [(one, mask) for one, mask in zip(account.ownership, masks, strict=True) if one is not None and mask.any()]
    if not known or len(known) < len(account.run.ranks):
        return []
    line = _line(*known[0])
    if line is None:
        return []
    calls, size, took = _per_step(known[0][0], known[0][1])
    return [
        Candidate(
            id="redundant-communication",
            title=f"{line[0]}:{line[1]} broadcasts {size / 2**20:.0f} MB of buffers in every forward pass",
            cause="the training wrapper sends the first rank's buffers to all ranks before each forward pass, and no "
            "compute runs beside it",
            remedy="Buffers that are constant (masks, tables) need not be sent: DistributedDataParallel(broadcast_buffers=False), "
            "or keep them as plain attributes. Running statistics may differ between ranks then, as without "
            "synchronisation. The saving is of the step without these broadcasts.",
            change=without_parts([_part(one, mask) for one, mask in known]),
            evidence=(
                Evidence("broadcasts in forward per step", round(calls, 1), "calls"),
                Evidence("bytes broadcast per step", round(size), "bytes"),
                Evidence("time of the broadcasts per step", host_ms(took), "ms"),
            ),
            where=(at(line),),
            what_if=(),
            doubt=0.25,
        )
    ]


def broadcasts_in_forward(account: Account) -> list[Mask]:
    """Return per rank which collectives a wrapper that leaves parameters whole broadcasts in its own forward."""
    none = [np.zeros(len(rank.collectives), bool) for rank in account.run.ranks]
    if not gradient_groups_only(account) or any(d.kind != "ddp" for d in account.strategy.dimensions):
        return none
    return [empty if one is None else _sent(one) for one, empty in zip(account.ownership, none, strict=True)]


def _sent(owned: Ownership) -> Mask:
    c, owner = owned.rank.collectives, owned.by_collective
    root = np.array([*(not path for path in owned.modules), False], bool)
    library = owned.stacks.innermost != owned.stacks.innermost_user
    return (c.step >= 0) & (c.op == OP_CODE["broadcast"]) & ~owner.backward & root[owner.module] & library[owner.stack]


def _part(owned: Ownership, mask: Mask) -> Part:
    stacks = distinct(owned.by_collective.stack[mask])
    return part_for(owned, lambda _, things: np.isin(things.stack, stacks) & ~things.backward)


def _line(owned: Ownership, mask: Mask) -> Line | None:
    lines = user_lines(owned, int(owned.by_collective.stack[mask][0]))
    return lines[-1] if lines else None


def _per_step(owned: Ownership, mask: Mask) -> tuple[float, float, float]:
    c, steps = owned.rank.collectives, max(len(owned.rank.steps), 1)
    took = int((c.end_ns - c.start_ns)[mask].sum())
    return int(mask.sum()) / steps, int(np.maximum(c.full_bytes[mask], 0).sum()) / steps, took / steps


# `redundant-communication` by line: gradients that a line sends once more, after the training wrapper has sent them.
#
#     backward     the wrapper reduces its buckets                                    100 MB
#     train.py:59  for p in model.parameters(): dist.all_reduce(p.grad)               100 MB: the same, again
#     optimizer
#
# Told by size: what a line sends between backward and optimizer is at least what the wrapper sent in backward. A norm
# or
# a flag is next to nothing beside it.

# of the bytes that the wrapper sends: the gradients as a whole
_ALL = 0.9


def sent_again(account: Account) -> list[Candidate]:
    """Return the lines that send all gradients a second time."""
    return [_candidate(account, line) for line in _lines_sending_again(account)]


@once_per_record
def _lines_sending_again(account: Account) -> list[Line]:
    return lines_on_all(account, _sends_again) if gradient_groups_only(account) else []


def rows_sent_again(account: Account) -> list[Mask]:
    """Return which collectives of each rank such a line asked for."""
    lines = _lines_sending_again(account)
    found = []
    for rank, known in zip(account.run.ranks, account.line_work, strict=True):
        mask = np.zeros(len(rank.collectives), bool)
        for line in lines:
            if known is not None and line in known.lines:
                mask |= known.holding(line)[known.owned.by_collective.stack]
        found.append(mask)
    return found


def _sends_again(rank: RankLines, work: LineWork) -> bool:
    if not work.collectives or work.modules or work.has_backward or work.optimizes:
        return False
    ran = work.last_ns > -np.iinfo(np.int64).max
    between = (work.first_ns > rank.backward_ns) & (work.last_ns < rank.optimizer_ns)
    if not ran.any() or not between[ran].all():
        return False
    owner = rank.owned.by_collective
    wrapper = _sent_bytes(rank, owner.backward)
    return _sent_bytes(rank, among(owner.stack, work.stacks) & ~owner.backward) >= _ALL * wrapper > 0


def _sent_bytes(rank: RankLines, chosen: Mask) -> int:
    c = rank.owned.rank.collectives
    return int(np.maximum(c.full_bytes[chosen & (c.step >= 0) & among(c.op, GRADIENT_OPS)], 0).sum())


def _candidate(account: Account, line: Line) -> Candidate:
    place = f"{line[0]}:{line[1]}"
    size = steps = 0
    for known in ranks_with(account, line):
        size += _sent_bytes(known, known.holding(line)[known.owned.by_collective.stack])
        steps += max(len(known.owned.rank.steps), 1)
    return Candidate(
        id="redundant-communication",
        title=f"{place} sends all gradients again",
        cause=f"the training wrapper has synchronised the gradients when backward ends, and {place} does so once more",
        remedy="Leave it out: DistributedDataParallel and FSDP have averaged the gradients when backward() returns. "
        "The saving is of the step without this line.",
        change=without_lines(account, [line]),
        evidence=(Evidence("bytes sent needlessly per step", round(size / steps), "bytes", place),),
        where=(at(line),),
        what_if=("--without", place),
        subject=f"communication of the loop ({place})",
    )


# `redundant-communication` by line: collectives that the user's code adds to those of the training wrapper.


def user_communication(account: Account) -> list[Candidate]:
    """Return lines that communicate outside forward, backward and optimizer, where a wrapper synchronises gradients."""
    if not gradient_groups_only(account) or not _is_wrapped(account):
        return []
    return [_user_communication_candidate(account, line) for line in lines_on_all(account, _is_extra)]


def _is_wrapped(account: Account) -> bool:
    known = [one for one in account.ownership if one is not None]
    return bool(known) and all(
        bool((one.by_collective.backward & (one.rank.collectives.step >= 0)).any()) for one in known
    )


def _is_extra(rank: RankLines, work: LineWork) -> bool:
    if not work.apart or not work.collectives or work.modules:
        return False
    ran = work.last_ns > -np.iinfo(np.int64).max
    before = work.last_ns < rank.forward_ns
    after = (work.first_ns > rank.backward_ns) & (work.first_ns > rank.optimizer_ns)
    return bool(ran.any() and (before | after)[ran].all())


def _user_communication_candidate(account: Account, line: Line) -> Candidate:
    place = f"{line[0]}:{line[1]}"
    calls, size, steps = 0, 0, 0
    for known in ranks_with(account, line):
        c, owner = known.owned.rank.collectives, known.owned.by_collective
        mine = known.holding(line)[owner.stack] & (c.step >= 0)
        calls += int(mine.sum())
        size += int(np.maximum(c.full_bytes[mine], 0).sum())
        steps += max(len(known.owned.rank.steps), 1)
    return Candidate(
        id="redundant-communication",
        title=f"{place} communicates in every step, outside the training wrapper",
        cause=f"{place} asks for {calls / steps:.0f} collectives per step beside those that synchronise gradients",
        remedy="Weights that start equal stay equal where gradients are synchronised: send them once. Reduce metrics "
        "every N steps, in one call. The saving is of the step without this line.",
        change=without_lines(account, [line]),
        evidence=(
            Evidence("collectives of the line per step", round(calls / steps, 1), "calls", place),
            Evidence("bytes sent per step", round(size / steps), "bytes", place),
        ),
        where=(at(line),),
        what_if=("--without", place),
        subject=f"communication of the loop ({place})",
    )


# `too-many-small-collectives`: latency-bound communication: tiny buckets, per-parameter calls.

_MANY = 8
_TOGETHER = 8


def too_many_small_collectives(account: Account) -> list[Candidate]:
    """Return many small messages per step where most of them could travel together."""
    if account.replay is None or not gradient_groups_only(account):
        return []
    if not any((r.collectives.full_bytes > 0).any() for r in account.run.ranks):
        return _by_count(account)
    small, total, steps = 0, 0, 0
    for rank in account.run.ranks:
        size = rank.collectives.full_bytes[group_rows(rank)]
        small += int(((size >= 0) & (size < (GOOD_MESSAGE_BYTES // 2))).sum())
        total += len(size)
        steps += max(len(rank.steps), 1)
    if small < _MANY * steps or small < 0.5 * total:
        return []
    sizes = np.concatenate([r.collectives.full_bytes[group_rows(r)] for r in account.run.ranks])
    return [
        Candidate(
            id="too-many-small-collectives",
            title="Many small collectives instead of few large ones",
            cause="each call pays its latency on the host and on the network, whatever its size",
            remedy="Put gradients into buckets (DistributedDataParallel's bucket_cap_mb=25, or a flat buffer per 4 MB and more). "
            "The saving is of the same bytes in 4 MB messages.",
            change=larger_messages,
            evidence=(
                Evidence("collectives per step", round(total / steps, 1), "calls", "mean rank"),
                Evidence("median message", int(median(sizes)), "bytes"),
            ),
            doubt=0.35,
        )
    ]


def _by_count(account: Account) -> list[Candidate]:
    ranks = account.run.ranks
    calls = sum(len(group_rows(r)) for r in ranks) / max(sum(len(r.steps) for r in ranks), 1)
    # calls per step where no size is known: a model has that many parameters, no set of buckets has
    if calls < 64:
        return []
    from stepscope.analyze.replay.communication_changes import fewer_calls  # only for traces without sizes

    took = np.concatenate([(r.collectives.end_ns - r.collectives.start_ns)[group_rows(r)] for r in ranks])
    return [
        Candidate(
            id="too-many-small-collectives",
            title="Many collectives instead of few",
            cause="each call pays its latency on the host and on the network; how large they are was not recorded",
            remedy="Put gradients into buckets (DistributedDataParallel's bucket_cap_mb=25, or a flat buffer per 4 MB and more). "
            f"The saving is of {_TOGETHER} calls put together, which pay the latency of one.",
            change=lambda replay: fewer_calls(replay, _TOGETHER),
            evidence=(
                Evidence("collectives per step", round(calls, 1), "calls", "mean rank"),
                Evidence("median duration", host_ms(median(took)), "ms"),
            ),
            doubt=0.5,
            sureness=0.7,
        )
    ]


# `too-many-small-collectives` by module: layers that communicate inside forward and backward of a data-parallel job.


def module_communication(account: Account) -> list[Candidate]:
    """Return the modules whose own forward pass communicates, where the wrapper leaves the parameters whole.

    A wrapper that shards parameters gathers them inside modules too: that is how it works.
    """
    if not gradient_groups_only(account) or any(d.kind != "ddp" for d in account.strategy.dimensions):
        return []
    modules = [_talking(one) if one is not None else frozenset() for one in account.ownership]
    known = [(one, mine) for one, mine in zip(account.ownership, modules, strict=True) if one is not None]
    calls = [_calls(one, mine) for one, mine in known]
    if not calls or min(n for n, _ in calls) < _MANY:
        return []
    parts = [
        NO_PART if one is None else part_for(one, _chooses(mine), device=False)
        for one, mine in zip(account.ownership, modules, strict=True)
    ]
    some = sorted(known[0][1], key=lambda path: (path.count("."), path))
    named = f"{len(some)} modules such as {some[len(some) // 2]}" if len(some) > 1 else f"module {some[0]}"
    return [
        Candidate(
            id="too-many-small-collectives",
            title=f"{named} communicate in forward and backward" if len(some) > 1 else f"{named} communicates",
            cause=f"{named} ask for {calls[0][0]:.0f} small collectives per step; all ranks wait for each of them, and no "
            "other work is ready meanwhile (SyncBatchNorm and the like)",
            remedy="Use layers that do not communicate (BatchNorm with enough samples per rank, GroupNorm), or "
            "communicate in fewer of them. The saving is of these modules without communication and without their "
            "host time; their kernels stay.",
            change=without_parts(parts),
            evidence=(
                Evidence("collectives of these modules per step", round(calls[0][0], 1), "calls"),
                Evidence("communication of these modules per step", host_ms(calls[0][1]), "ms"),
            ),
            where=_where(known),
            what_if=(),
            doubt=0.25,
        )
    ]


def _talking(owned: Ownership) -> frozenset[str]:
    c, owner = owned.rank.collectives, owned.by_collective
    mine = (c.step >= 0) & ~owner.backward & (owner.module >= 0) & (c.full_bytes < (1 << 20))
    return frozenset(path for m in distinct(owner.module[mine]).tolist() if (path := owned.modules[m]))


def _chooses(modules: frozenset[str]) -> Choose:
    def chosen(owned: Ownership, things: OwnedWork) -> Mask:
        fits = np.array([*(path in modules for path in owned.modules), False], bool)
        return fits[things.module]

    return chosen


def _calls(owned: Ownership, modules: frozenset[str]) -> tuple[float, float]:
    c = owned.rank.collectives
    mine = _chooses(modules)(owned, owned.by_collective) & (c.step >= 0)
    steps = max(len(owned.rank.steps), 1)
    return float(mine.sum()) / steps, float((c.end_ns - c.start_ns)[mine].sum()) / steps


def _where(known: list[tuple[Ownership, frozenset[str]]]) -> tuple[Where, ...]:
    costs = []
    for owned, modules in known:
        c, owner = owned.rank.collectives, owned.by_collective
        mine = _chooses(modules)(owned, owner) & (c.step >= 0)
        costs.append((owned, costs_by_owner(owner, (c.end_ns - c.start_ns) * mine.astype(float))))
    return (*places(costs)[:1], *top_modules(costs, most=2))


# `slow-link`: one group's collectives are far slower than those of its sibling groups.


def slow_link(account: Account) -> list[Candidate]:
    """Return groups whose transfers take more than twice those of the groups that do the same elsewhere."""
    matches = account.shared.matches
    if account.replay is None:
        return []
    transfer = _transfers(account)
    found = []
    desc = np.array([g.desc for g in matches.groups])
    for role in sorted(set(desc.tolist())):
        groups = np.flatnonzero(desc == role)
        if len(groups) < 3 or not role:
            continue  # with two groups nobody can tell which one is unusual
        rates = {int(g): _ns_per_byte(account, transfer, int(g)) for g in groups}
        known = {g: rate for g, rate in rates.items() if rate is not None}
        usual = median(list(known.values())) if len(known) >= 3 else 0.0
        found += [_slow_link_candidate(account, g, known[g] / usual) for g in known if usual and known[g] > 2.0 * usual]
    return found


def _transfers(account: Account) -> np.ndarray:
    matches = account.shared.matches
    own = np.zeros(len(matches.row))
    for index, rank in enumerate(account.run.ranks):
        mine = matches.rank_index == index
        c, wait = rank.collectives, account.shared.wait_ns[index]
        own[mine] = (c.end_ns - c.start_ns - np.maximum(wait, 0))[matches.row[mine]]
    return np.minimum.reduceat(own, matches.first[:-1]) if len(matches) else own


def _ns_per_byte(account: Account, transfer: np.ndarray, group: int) -> float | None:
    matches = account.shared.matches
    mine = (matches.group == group) & (matches.size_bytes > 0) & ~among(matches.op, POINT_TO_POINT)
    if mine.sum() < 4:
        return None
    return median(transfer[mine] / matches.size_bytes[mine])


def _slow_link_candidate(account: Account, group: int, times: float) -> Candidate:
    named = account.shared.matches.groups[group]
    slow = {(named.name, named.ranks)}

    def fixed(replay: Replay) -> Replay:
        out = []
        for rank, wait in zip(replay.shared.run.ranks, replay.shared.wait_ns, strict=True):
            c = rank.collectives
            own = c.end_ns - c.start_ns - np.maximum(wait, 0)
            mine = np.array([(g.name, g.ranks) in slow for g in c.groups], bool)
            out.append(np.where(mine[c.group], np.rint(own / times), own).astype(np.int64) if len(c) else own)
        return with_transfer_times(replay, out)

    return Candidate(
        id="slow-link",
        title=f"Collectives of group {named.desc} {named.ranks} are {times:.1f} times as slow as its siblings'",
        cause="a link, port or device of these ranks is slower, or their traffic takes another path",
        remedy="Check the links of these ranks (nvidia-smi topo -m, ibstat, NCCL_DEBUG=INFO) and NCCL's choice of network. "
        "The saving is of this group as fast as its siblings.",
        change=fixed,
        ranks=named.ranks or (),
        evidence=(Evidence("transfer time per byte against sibling groups", round(times, 2), "times"),),
        sureness=0.7,
    )


# `slow-link`, by NCCL's own log: ranks talk over a slower path than the machine has, or than such jobs usually have.

_OFF = ("0", "", "false", "no")


def slow_transport(account: Account) -> list[Candidate]:
    """Return one candidate where a log shows sockets between machines, or a way inside a machine that was switched off."""
    logs = account.run.beside.nccl
    found = [(title, [log for log in logs if applies(log)]) for title, applies in _FAULTS]
    found = [(title, those) for title, those in found if those]
    if not found:
        return []
    titles = "; ".join(title for title, _ in found)
    ranks = sorted({log.rank for _, those in found for log in those})
    return [
        Candidate(
            id="slow-link",
            title=titles[:1].upper() + titles[1:],
            cause="NCCL uses a slower transport: " + "; ".join(_reasons(those) for _, those in found),
            remedy="Unset NCCL_IB_DISABLE, NCCL_P2P_DISABLE and NCCL_SHM_DISABLE, and let NCCL see the devices (in a container: "
            "--ipc=host or --shm-size, --cap-add=IPC_LOCK, /dev/infiniband). What the faster transport would save "
            "is not known before it is measured: stepscope calibrate on both.",
            fixed_saving_ns=0.0,
            ranks=tuple(ranks),
            evidence=tuple(_evidence(found))[:12],
            always=True,
            sureness=0.7,
        )
    ]


def _sockets_between_machines(log: NcclLog) -> bool:
    return _uses(log, "NET/Socket") and (log.num_nodes or 0) > 1


def _network_inside_machine(log: NcclLog) -> bool:
    return log.num_nodes == 1 and any(name.startswith("NET/") for name in log.transports)


def _no_peer_access(log: NcclLog) -> bool:
    switched_off = log.settings.get("NCCL_P2P_DISABLE", "0").lower() not in _OFF
    beside_nvlink = "NVL" in log.links and any(name.startswith("SHM") for name in log.transports)
    return (log.local_ranks or 0) != 1 and (switched_off or beside_nvlink)


def _no_shared_memory(log: NcclLog) -> bool:
    return log.settings.get("NCCL_SHM_DISABLE", "0").lower() not in _OFF and (log.local_ranks or 0) != 1


_FAULTS = (
    ("ranks on different machines talk over sockets instead of InfiniBand", _sockets_between_machines),
    ("ranks of one machine talk over the network", _network_inside_machine),
    ("GPUs of one machine do not reach each other directly over NVLink or PCIe", _no_peer_access),
    ("shared memory between ranks of one machine is switched off", _no_shared_memory),
)


def _uses(log: NcclLog, transport: str) -> bool:
    return any(name.startswith(transport) for name in log.transports)


def _reasons(logs: Sequence[NcclLog]) -> str:
    settings = {f"{k}={v}" for log in logs for k, v in log.settings.items() if k.endswith("_DISABLE")}
    if settings:
        return f"switched off by {', '.join(sorted(settings))}"
    if any(log.infiniband_missing for log in logs):
        return "NCCL found no InfiniBand device that it could use"
    return "the log does not say why"


def _evidence(found: Iterable[tuple[str, Sequence[NcclLog]]]) -> Iterable[Evidence]:
    seen = {log.rank: log for _, logs in found for log in logs}
    for rank, log in sorted(seen.items()):
        where = f"rank {rank}"
        if log.transports:
            said = ", ".join(f"{name} {count}" for name, count in log.transports.items())
            yield Evidence("connections by transport", said, "", where)
        if log.max_bw_gb_per_s is not None:
            yield Evidence("bandwidth of the path by NCCL's topology", log.max_bw_gb_per_s, "GB/s", where)
        for interface in log.interfaces[:2]:
            yield Evidence("interface", interface, "", where)


# `communication-bound`: transfer time that no overlap could hide.


def communication_bound(account: Account) -> list[Candidate]:
    """Return exposed transfer as a cost, with half the bytes as the fix; what need not be sent at all stays."""
    if account.step is None or account.replay is None or not communicates(account.replay):
        return []
    exposed = account.step.ns("exposed_transfer") + account.step.unmatched_ns
    needless = broadcasts_in_forward(account)
    return [
        Candidate(
            id="communication-bound",
            title="The step waits for transfers",
            cause="more bytes cross the links than compute can hide",
            remedy=_remedy(account),
            change=lambda replay: fewer_bytes(replay, 0.5, kept=needless),
            cost_ns=exposed,
            evidence=(Evidence("exposed transfer per step", host_ms(exposed), "ms", "mean rank"),),
            what_if=() if any(mask.any() for mask in needless) else None,
            doubt=0.2,
        )
    ]


def _remedy(account: Account) -> str:
    if not trains(account.strategy.passes):
        return (
            "Send half the bytes: activations in 16 or 8 bit; keep tensor-parallel groups within the fast links. The saving is "
            "of half the bytes."
        )
    narrow = abilities(account.run.ranks, account.chip.chip).narrow
    hook = "fp16_compress_hook" if narrow == "float16" else "bf16_compress_hook"
    return (
        f"Send half the bytes: 16-bit gradients (ddp.register_comm_hook(None, {hook}), FSDP "
        f"MixedPrecisionPolicy(reduce_dtype=torch.{narrow})); accumulate gradients over more micro-batches; shard within the fast "
        "links. The saving is of half the bytes."
    )


# `no-overlap`: gradient communication that could run beside the backward pass and does not.


def no_overlap(account: Account) -> list[Candidate]:
    """Return exposed gradient transfers, with the same bytes overlapped with backward as the fix."""
    if account.step is None or account.replay is None or not gradient_groups_only(account):
        return []
    regions = [view.budget.regions if view.budget else None for view in account.ranks]
    backward = [r.region == Region.BACKWARD for r in regions if r is not None]
    if len(backward) < len(regions):
        return []
    done = _backward_done(account.replay, backward, rows_sent_again(account))
    # of the backward pass done when the mean gradient byte is sent; evenly spread it would be half
    if done is None or done < 0.85:
        return []
    from stepscope.analyze.replay.communication_changes import perfectly_overlapped  # only where the fault is there

    exposed = account.step.ns("exposed_transfer")
    efficiency = account.overlap_efficiency
    return [
        Candidate(
            id="no-overlap",
            title="Gradients are sent when backward is over, not while it runs",
            cause="collectives start late: one bucket, a flat buffer, or a synchronisation after backward()",
            remedy="Use DistributedDataParallel with buckets of 4-25 MB (bucket_cap_mb), or start each all-reduce in a post-accumulate "
            "hook on a stream of its own. The saving is of the same bytes overlapped as far as dependencies allow, small messages put together "
            "into buckets of 4 MB.",
            change=perfectly_overlapped(backward),
            cost_ns=exposed,
            evidence=(
                Evidence("of backward done when gradients are sent", round(100 * done, 1), "%", "mean over bytes"),
                Evidence("exposed transfer per step", host_ms(exposed), "ms", "mean rank"),
                Evidence(
                    "gradient collectives per step", round(_sends_per_step(account.replay), 1), "calls", "mean rank"
                ),
                Evidence("overlap efficiency", round(efficiency, 3) if efficiency is not None else "unknown"),
            ),
            doubt=0.3,
            sureness=0.8,
        )
    ]


def _sends_per_step(replay: Replay) -> float:
    counts = []
    for rank, program in zip(replay.shared.run.ranks, replay.programs, strict=True):
        sends = program.collective[program.collective != NOTHING]
        counts.append(among(rank.collectives.op[sends], GRADIENT_OPS).sum() / len(replay.steps))
    return float(np.mean(counts))


def _backward_done(replay: Replay, backward: list[Mask], again: list[Mask]) -> float | None:
    """Return how much of the backward pass was launched before the gradients were, mean over bytes; None without any.

    What is sent a second time (`again`) does not count.
    """
    done = weight = 0.0
    each = zip(replay.shared.run.ranks, replay.programs, backward, again, strict=True)
    for rank, program, mask, repeated in each:
        sends = np.flatnonzero(program.collective != NOTHING)
        sends = sends[~repeated[program.collective[sends]]]
        sends = sends[among(rank.collectives.op[program.collective[sends]], GRADIENT_OPS)]
        computing = np.flatnonzero((program.collective == NOTHING) & mask[program.device_index])
        step_of = program.step[computing]
        for step in distinct(program.step[sends]):
            mine = sends[program.step[sends] == step]
            back = computing[np.flatnonzero(step_of == step)]
            back = back[back < mine[-1]]
            total = float(program.duration_ns[back].sum())
            if not total:
                continue
            before = np.concatenate(([0.0], np.cumsum(program.duration_ns[back])))[np.searchsorted(back, mine)] / total
            size = np.maximum(rank.collectives.full_bytes[program.collective[mine]], 1)
            done += float((before * size).sum())
            weight += float(size.sum())
    return done / weight if weight else None


_NARROW_ALREADY = (
    "The messages are of 16 bit or less already: send them less often (accumulate gradients over more micro-batches), shard "
    "within the fast links, or use faster links. The saving is of half the bytes."
)


def half_the_bytes(account: Account) -> list[Candidate]:
    """Return exposed transfers, with what the run has done about them already left out of the advice."""
    found = communication_bound(account)
    if sixteen_bit_messages(account):
        found = [replace(c, remedy=_NARROW_ALREADY) for c in found]
    step = account.step
    if step is not None and step.unmatched_ns > step.ns("exposed_transfer"):
        # waiting for other ranks cannot be told from transfer: how much of the time shrinks with the bytes is not known
        found = [replace(c, cause=f"{c.cause}, or other ranks are late: nobody recorded them", doubt=0.5)
                 for c in found]  # fmt: skip
    return found


def needed_transfers_ns(account: Account) -> float | None:
    """Return the time that fewer bytes can remove: not that of bytes which need not be sent at all."""
    most = not_computing_ns(account)
    return None if most is None else most * _needed_share(account)
