"""Kinds of findings in what ranks send: too much, too often, too late, in pieces too small, or over a slow path."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from stepscope.analyze.account import Account
from stepscope.analyze.kernels import abilities
from stepscope.analyze.owner_places import MOSTLY, costs_by_owner, places, top_modules, user_lines
from stepscope.analyze.ownership import OwnedWork, Ownership
from stepscope.analyze.phases import trains
from stepscope.analyze.replay.changes import (
    GOOD_MESSAGE_BYTES,
    GRADIENT_OPS,
    fewer_bytes,
    larger_messages,
    with_transfer_times,
    without_collectives,
    without_work,
)
from stepscope.analyze.replay.graph import NOTHING
from stepscope.analyze.replay.removal import Choose, part_for
from stepscope.analyze.replay.replay import Replay
from stepscope.contract.operations import OP_CODE
from stepscope.contract.step_line import Region
from stepscope.diagnose.finding import Evidence, Kind, Match, evidence_ms
from stepscope.diagnose.lines import needless_rows
from stepscope.diagnose.measures import (
    Mask,
    at,
    communicates,
    gradient_groups_only,
    group_rows,
    not_computing_ns,
    place_of,
    without_parts,
)
from stepscope.diagnose.recording import Need, Scope, sixteen_bit_messages
from stepscope.records import Row, once_per_record
from stepscope.run.clocks import POINT_TO_POINT
from stepscope.run.device_work import enclosing
from stepscope.run.rank import Rank
from stepscope.stats.robust import among, distinct, median
from stepscope.trace.table import EventKind

# messages per step from which latency is worth looking at, and how many calls are put together where no size is known
_MANY = _TOGETHER = 8

# Gradients synchronised in every micro-batch of an accumulated step.


def _every_micro_batch(account: Account) -> Iterator[Match]:
    """Yield the collectives of a step that the same step repeats later."""
    if account.replay is None or not gradient_groups_only(account):
        return
    ranks, found = account.run.ranks, [_repeated(rank) for rank in account.run.ranks]
    times = min((n for _, n in found), default=1)
    if times < 2:
        return
    dropped = [mask for mask, _ in found]
    bucket_work = [_bucket_work(rank, mask) for rank, mask in zip(ranks, dropped, strict=True)]
    size = sum(int(r.collectives.full_bytes[m].sum()) for r, m in zip(ranks, dropped, strict=True))
    steps = sum(max(len(r.steps), 1) for r in ranks)
    yield Match(
        lambda replay: without_work(without_collectives(replay, dropped), bucket_work),
        facts={"times": times},
        evidence=(
            Evidence("synchronisations of the same gradients {per_step}", times, "times"),
            Evidence("bytes sent needlessly {per_step}", round(size / steps), "bytes", "average rank"),
        ),
    )


def _needed_ns(account: Account) -> float | None:
    """Return the time that fewer bytes can remove: not that of bytes which need not be sent at all."""
    most = not_computing_ns(account)
    if most is None or account.replay is None or not gradient_groups_only(account):
        return most
    found = [(rank.collectives.full_bytes, *_repeated(rank)) for rank in account.run.ranks]
    sent = sum(int(np.maximum(size, 0).sum()) for size, _, _ in found)
    again = sum(int(np.maximum(size[mask], 0).sum()) for size, mask, _ in found)
    return most * (1 - again / sent) if sent and min((n for _, _, n in found), default=1) > 1 else most


@once_per_record
def _repeated(rank: Rank) -> tuple[Mask, int]:
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


def _period(sequence: list[tuple[int, int, int]]) -> int:
    """Return the shortest length of which the sequence is a whole number of repeats.

    One size over and over is no repeat of a step's gradients but equal buckets: a period has two sizes at least.
    """
    n = len(sequence)
    for length in range(2, n // 2 + 1):
        if n % length == 0 and sequence == sequence[:length] * (n // length) and len(set(sequence[:length])) > 1:
            return length
    return max(n, 1)


def _bucket_work(rank: Rank, dropped: Mask) -> Mask:
    """Return the device work that moves gradients in and out of buckets for the dropped collectives.

    The training wrapper marks it; in each step it belongs to the last synchronisation once the first collective of that
    one has been prepared, before that to a dropped one.
    """
    work, c = rank.work, rank.collectives
    named = ("reducer::", "FSDP::post_backward_reduce")
    marks = rank.rows_named(lambda s: any(mark in s for mark in named), EventKind.HOST_OP, EventKind.ANNOTATION)
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


# What a data-parallel wrapper, or a layer, sends in forward.


def broadcasts_in_forward(account: Account) -> list[Mask]:
    """Return per rank which collectives a wrapper that leaves parameters whole broadcasts in its own forward."""
    whole = gradient_groups_only(account) and all(d.kind == "ddp" for d in account.strategy.dimensions)
    return [
        _sent(one) if one is not None and whole else np.zeros(len(rank.collectives), bool)
        for rank, one in zip(account.run.ranks, account.ownership, strict=True)
    ]


def _sent(owned: Ownership) -> Mask:
    c, owner = owned.rank.collectives, owned.by_collective
    root = np.array([*(not path for path in owned.modules), False], bool)
    library = owned.stacks.innermost != owned.stacks.innermost_user
    return (c.step >= 0) & (c.op == OP_CODE["broadcast"]) & ~owner.backward & root[owner.module] & library[owner.stack]


def _buffers(account: Account) -> Iterator[Match]:
    masks = broadcasts_in_forward(account)
    known = [(one, mask) for one, mask in zip(account.ownership, masks, strict=True) if one is not None and mask.any()]
    if not known or len(known) < len(account.run.ranks):
        return
    owned, mask = known[0]
    lines = user_lines(owned, int(owned.by_collective.stack[mask][0]))
    if not lines:
        return
    c, steps = owned.rank.collectives, max(len(owned.rank.steps), 1)
    size = int(np.maximum(c.full_bytes[mask], 0).sum()) / steps
    yield Match(
        without_parts([part_for(one, _from_stacks(one, sent)) for one, sent in known]),
        facts={"place": place_of(lines[-1]), "mb": f"{size / 2**20:.0f}"},
        evidence=(
            Evidence("broadcasts in forward {per_step}", round(int(mask.sum()) / steps, 1), "calls"),
            Evidence("bytes broadcast {per_step}", round(size), "bytes"),
            evidence_ms("time of the broadcasts {per_step}", int((c.end_ns - c.start_ns)[mask].sum()) / steps),
        ),
        where=(at(lines[-1]),),
        what_if=(),
    )


def _from_stacks(owned: Ownership, mask: Mask) -> Choose:
    stacks = distinct(owned.by_collective.stack[mask])
    return lambda _, things: np.isin(things.stack, stacks) & ~things.backward


def _talking_modules(account: Account) -> Iterator[Match]:
    """Yield the modules whose own forward pass communicates, where the wrapper leaves the parameters whole.

    A wrapper that shards parameters gathers them inside modules too: that is how it works.
    """
    if not gradient_groups_only(account) or any(d.kind != "ddp" for d in account.strategy.dimensions):
        return
    known = [(one, _talking(one)) for one in account.ownership if one is not None]
    rows = [
        (one, _of_modules(modules)(one, one.by_collective) & (one.rank.collectives.step >= 0)) for one, modules in known
    ]
    calls = [mask.sum() / max(len(one.rank.steps), 1) for one, mask in rows]
    if not calls or len(known) < len(account.run.ranks) or min(calls) < _MANY:
        return
    costs = [(one, costs_by_owner(one.by_collective, _took(one) * mask)) for one, mask in rows]
    some = sorted(known[0][1], key=lambda path: (path.count("."), path))
    several = len(some) > 1
    took = float((_took(rows[0][0]) * rows[0][1]).sum()) / max(len(rows[0][0].rank.steps), 1)
    yield Match(
        without_parts([part_for(one, _of_modules(modules), device=False) for one, modules in known]),
        facts={
            "named": f"{len(some)} modules such as {some[len(some) // 2]}" if several else f"module {some[0]}",
            "communicate": "communicate" if several else "communicates",
            "calls": f"{calls[0]:.0f}",
        },
        evidence=(
            Evidence("collectives of these modules {per_step}", round(float(calls[0]), 1), "calls"),
            evidence_ms("communication of these modules {per_step}", took),
        ),
        where=(*places(costs)[:1], *top_modules(costs, most=2)),
        what_if=(),
    )


def _took(owned: Ownership) -> npt.NDArray[np.float64]:
    c = owned.rank.collectives
    return (c.end_ns - c.start_ns).astype(float)


def _talking(owned: Ownership) -> frozenset[str]:
    c, owner = owned.rank.collectives, owned.by_collective
    mine = (c.step >= 0) & ~owner.backward & (owner.module >= 0) & (c.full_bytes < (1 << 20))
    return frozenset(path for m in distinct(owner.module[mine]).tolist() if (path := owned.modules[m]))


def _of_modules(modules: frozenset[str]) -> Choose:
    def chosen(owned: Ownership, things: OwnedWork) -> Mask:
        return np.array([*(path in modules for path in owned.modules), False], bool)[things.module]

    return chosen


# Latency: many small messages.


def _small_messages(account: Account) -> Iterator[Match]:
    """Yield many small messages per step where most of them could travel together."""
    ranks = account.run.ranks
    if account.replay is None or not gradient_groups_only(account):
        return
    steps = max(sum(len(r.steps) for r in ranks), 1)
    rows = [group_rows(r) for r in ranks]
    sizes = np.concatenate([r.collectives.full_bytes[mine] for r, mine in zip(ranks, rows, strict=True)])
    calls = Evidence("collectives {per_step}", round(len(sizes) / steps, 1), "calls", "average rank")
    if any((r.collectives.full_bytes > 0).any() for r in ranks):
        small = int(((sizes >= 0) & (sizes < GOOD_MESSAGE_BYTES // 2)).sum())
        if small >= max(_MANY * steps, MOSTLY * len(sizes)):
            yield Match(larger_messages, evidence=(calls, Evidence("median message", int(median(sizes)), "bytes")))
    elif len(sizes) >= 64 * steps:  # a model has that many parameters, no set of buckets has
        from stepscope.analyze.replay.changes import fewer_calls  # only for traces without sizes

        took = [(r.collectives.end_ns - r.collectives.start_ns)[mine] for r, mine in zip(ranks, rows, strict=True)]
        yield Match(
            lambda replay: fewer_calls(replay, _TOGETHER),
            evidence=(calls, evidence_ms("median duration", median(np.concatenate(took)))),
            title="Too many collectives",
            cause="each call pays its latency on the host and on the network; their sizes were not recorded",
            remedy="Put gradients into buckets (DistributedDataParallel's bucket_cap_mb=25, or a flat buffer per 4 MB and more). "
            f"Assumes {_TOGETHER} calls put together, which pay the latency of one.",
            doubt=0.5,
            sureness=0.7,
        )


# Links.


def _slow_group(account: Account) -> Iterator[Match]:
    """Yield groups whose transfers take more than twice those of the groups that do the same elsewhere."""
    matches = account.shared.matches
    if account.replay is None:
        return
    transfer = _transfers(account)
    desc = np.array([g.desc for g in matches.groups])
    for role in sorted(set(desc.tolist()) - {""}):
        rates = {int(g): _ns_per_byte(account, transfer, int(g)) for g in np.flatnonzero(desc == role)}
        known = {g: rate for g, rate in rates.items() if rate is not None}
        usual = median(list(known.values())) if len(known) >= 3 else 0.0  # of two none is the unusual one
        for group, rate in known.items():
            if usual and rate > 2.0 * usual:
                yield _slow_match(account, group, rate / usual)


def _transfers(account: Account) -> npt.NDArray[np.float64]:
    matches = account.shared.matches
    own = np.zeros(len(matches.row))
    for index, rank in enumerate(account.run.ranks):
        mine = matches.rank_index == index
        c, wait = rank.collectives, account.shared.wait_ns[index]
        own[mine] = (c.end_ns - c.start_ns - np.maximum(wait, 0))[matches.row[mine]]
    return np.minimum.reduceat(own, matches.first[:-1]) if len(matches) else own


def _ns_per_byte(account: Account, transfer: npt.NDArray[np.float64], group: int) -> float | None:
    matches = account.shared.matches
    mine = (matches.group == group) & (matches.size_bytes > 0) & ~among(matches.op, POINT_TO_POINT)
    return median(transfer[mine] / matches.size_bytes[mine]) if mine.sum() >= 4 else None


def _slow_match(account: Account, group: int, times: float) -> Match:
    named = account.shared.matches.groups[group]
    slow = (named.name, named.ranks)

    def as_siblings(replay: Replay) -> Replay:
        out = []
        for rank, wait in zip(replay.shared.run.ranks, replay.shared.wait_ns, strict=True):
            c = rank.collectives
            own = c.end_ns - c.start_ns - np.maximum(wait, 0)
            mine = np.array([(g.name, g.ranks) == slow for g in c.groups], bool)
            out.append(np.where(mine[c.group], np.rint(own / times), own).astype(np.int64) if len(c) else own)
        return with_transfer_times(replay, out)

    return Match(
        as_siblings,
        facts={"group": f"{named.desc} {named.ranks}", "times": f"{times:.1f}"},
        ranks=named.ranks or (),
        evidence=(Evidence("transfer time per byte against sibling groups", round(times, 2), "times"),),
    )


# by NCCL's log: what is slow about the path, and when
_OFF = ("0", "", "false", "no")
_PATHS: tuple[tuple[str, Callable[[Row], bool]], ...] = (
    (
        "ranks on different machines talk over sockets instead of InfiniBand",
        lambda log: any(name.startswith("NET/Socket") for name in log.transports) and (log.num_nodes or 0) > 1,
    ),
    (
        "ranks of one machine talk over the network",
        lambda log: log.num_nodes == 1 and any(name.startswith("NET/") for name in log.transports),
    ),
    (
        "GPUs of one machine do not reach each other directly over NVLink or PCIe",
        lambda log: (
            (log.local_ranks or 0) != 1
            and (
                log.settings.get("NCCL_P2P_DISABLE", "0").lower() not in _OFF
                or ("NVL" in log.links and any(name.startswith("SHM") for name in log.transports))
            )
        ),
    ),
    (
        "shared memory between ranks of one machine is switched off",
        lambda log: log.settings.get("NCCL_SHM_DISABLE", "0").lower() not in _OFF and (log.local_ranks or 0) != 1,
    ),
)


def _slow_path(account: Account) -> Iterator[Match]:
    """Yield one match where a log shows sockets between machines, or a path inside a machine that was switched off."""
    found = [(title, [log for log in account.run.beside.nccl if applies(log)]) for title, applies in _PATHS]
    found = [(title, logs) for title, logs in found if logs]
    if not found:
        return
    titles = "; ".join(title for title, _ in found)
    logs = {log.rank: log for _, those in found for log in those}
    yield Match(
        facts={"title": titles[:1].upper() + titles[1:], "why": "; ".join(_reasons(those) for _, those in found)},
        ranks=tuple(sorted(logs)),
        evidence=tuple(e for rank in sorted(logs) for e in _path_evidence(logs[rank]))[:12],
    )


def _reasons(logs: Sequence[Row]) -> str:
    settings = {f"{k}={v}" for log in logs for k, v in log.settings.items() if k.endswith("_DISABLE")}
    if settings:
        return f"switched off by {', '.join(sorted(settings))}"
    if any(log.infiniband_missing for log in logs):
        return "NCCL found no InfiniBand device that it could use"
    return "the log does not show why"


def _path_evidence(log: Row) -> Iterator[Evidence]:
    where = f"rank {log.rank}"
    if log.transports:
        listed = ", ".join(f"{name} {count}" for name, count in log.transports.items())
        yield Evidence("connections by transport", listed, "", where)
    if log.max_bw_gb_per_s is not None:
        yield Evidence("bandwidth of the path by NCCL's topology", log.max_bw_gb_per_s, "GB/s", where)
    yield from (Evidence("interface", interface, "", where) for interface in log.interfaces[:2])


# Transfers that compute does not hide: sent too late, or too many bytes.


def _no_overlap(account: Account) -> Iterator[Match]:
    """Yield exposed gradient transfers, with the same bytes overlapped with backward as the fix."""
    if account.step is None or account.replay is None or not gradient_groups_only(account):
        return
    regions = [view.budget.regions if view.budget else None for view in account.ranks]
    backward = [r.region == Region.BACKWARD for r in regions if r is not None]
    if len(backward) < len(regions):
        return
    done = _backward_done(account.replay, backward, needless_rows(account))
    if done is None or done < 0.85:  # when the mean gradient byte is sent; evenly spread it would be half
        return
    from stepscope.analyze.replay.changes import perfectly_overlapped  # only where the fault is there

    exposed, efficiency = account.step.ns("exposed_transfer"), account.overlap_efficiency
    yield Match(
        perfectly_overlapped(backward),
        cost_ns=exposed,
        evidence=(
            Evidence("backward done when gradients are sent", round(100 * done, 1), "%", "mean over bytes"),
            evidence_ms("exposed communication {per_step}", exposed, "average rank"),
            Evidence("overlap efficiency", round(efficiency, 3) if efficiency is not None else "unknown"),
        ),
    )


def _backward_done(replay: Replay, backward: list[Mask], again: list[Mask]) -> float | None:
    """Return how much of the backward pass was launched before the gradients were, mean over bytes; None without any.

    What need not be sent (`again`) does not count.
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


def _half_the_bytes(account: Account) -> Iterator[Match]:
    """Yield exposed transfers, with half the bytes as the fix; what need not be sent at all stays."""
    step = account.step
    if step is None or account.replay is None or not communicates(account.replay):
        return
    exposed = step.ns("exposed_transfer") + step.unmatched_ns
    needless = [a | b for a, b in zip(broadcasts_in_forward(account), needless_rows(account), strict=True)]
    unknown = step.unmatched_ns > step.ns("exposed_transfer")
    yield Match(
        lambda replay: fewer_bytes(replay, 0.5, kept=needless),
        facts={"how": _smaller(account), "or": ", or other ranks are late: they were not recorded" if unknown else ""},
        cost_ns=exposed,
        evidence=(evidence_ms("exposed communication {per_step}", exposed, "average rank"),),
        what_if=() if any(mask.any() for mask in needless) else None,
        doubt=0.5 if unknown else None,
    )


def _smaller(account: Account) -> str:
    accumulates = gradient_groups_only(account)  # messages of activations are sent in every micro-batch
    if sixteen_bit_messages(account):
        fewer = "send them less often (accumulate gradients over more micro-batches), " if accumulates else ""
        return f"The messages are of 16 bit or less already: {fewer}shard within the fast links, or use faster links."
    if not trains(account.strategy.passes):
        return "Halve the bytes: activations in 16 or 8 bit; put tensor-parallel groups within the fast links."
    narrow = abilities(account.run.ranks, account.chip.chip).narrow
    hook = "fp16_compress_hook" if narrow == "float16" else "bf16_compress_hook"
    ways = [
        f"ddp.register_comm_hook(None, {hook})" if account.strategy.has("ddp") else "",
        f"FSDP MixedPrecisionPolicy(reduce_dtype=torch.{narrow})" if not account.strategy.has("ddp") else "",
    ]
    if account.strategy.has("tp", "ep", "cp"):
        ways = [f"activations in torch.{narrow}"]
    also = "Accumulating gradients over more micro-batches or sharding" if accumulates else "Sharding"
    return f"Halve the bytes: {', '.join(w for w in ways if w)}. {also} within the fast links helps too."


_RANKS = Scope.SEVERAL_RANKS

# fmt: off
KINDS = (
    Kind("redundant-communication", _every_micro_batch, "Gradients are synchronised {times} times {per_step}",
         "each micro-batch of an accumulated step synchronises the same gradients",
         "Use model.no_sync() for all micro-batches but the last. It must enclose forward and backward (DDP); with FSDP2 call "
         "model.set_requires_gradient_sync(False). Assumes one synchronisation per step.",
         scope=_RANKS, needs=(Need.STEPS, Need.SIZES), training_only=True, doubt=0.3),
    Kind("redundant-communication", _buffers, "{mb} MB of buffers broadcast in every forward pass ({place})",
         "the training wrapper sends the first rank's buffers to all ranks before each forward pass, and no compute overlaps "
         "with it",
         "Buffers that are constant (masks, tables) need not be sent: DistributedDataParallel(broadcast_buffers=False), or make "
         "them plain attributes. Running statistics may differ between ranks then, as without synchronisation. Assumes "
         "the step without these broadcasts.",
         scope=_RANKS, training_only=True, doubt=0.25),
    Kind("no-overlap", _no_overlap, "Gradients are sent only after backward",
         "collectives start late: one bucket, a flat buffer, or a synchronisation after backward()",
         "Use DistributedDataParallel with buckets of 4-25 MB (bucket_cap_mb), or start each all-reduce in a post-accumulate "
         "hook on a separate stream. Assumes the same bytes overlapped as far as dependencies allow, small messages "
         "put together into buckets of 4 MB.",
         scope=_RANKS, needs=(Need.STEPS, Need.SIZES, Need.PASSES), limit=not_computing_ns, training_only=True,
         doubt=0.3, sureness=0.8),
    Kind("too-many-small-collectives", _small_messages, "Too many small collectives",
         "each call pays its latency on the host and on the network, whatever its size",
         "Send larger messages: DDP bucket_cap_mb=25; FSDP fully_shard on blocks. Otherwise put gradients into flat buffers of "
         "4 MB and more, and shard no single layers. Assumes the same bytes in 4 MB messages.",
         scope=_RANKS, needs=(Need.SIZES,), limit=not_computing_ns, training_only=True, doubt=0.35),
    Kind("too-many-small-collectives", _talking_modules, "{named} {communicate} in forward and backward",
         "{named} {communicate} {calls} times {per_step} in small messages; all ranks wait for each of them, and no other work "
         "is ready meanwhile (SyncBatchNorm and the like)",
         "Use layers that do not communicate (BatchNorm with enough samples per rank, GroupNorm), or communicate in fewer of "
         "them. Assumes these modules without communication and without their host time; their kernels stay.",
         scope=_RANKS, training_only=True, doubt=0.25),
    Kind("slow-link", _slow_group, "Collectives of group {group} are {times} times as slow as its siblings'",
         "a link, port or device of these ranks is slower, or their traffic takes another path",
         "Check the links of these ranks (nvidia-smi topo -m, ibstat, NCCL_DEBUG=INFO) and NCCL's choice of network. "
         "Assumes this group becomes as fast as its siblings.",
         scope=_RANKS, needs=(Need.ALL_RANKS, Need.SIZES), sureness=0.7),
    Kind("slow-link", _slow_path, "{title}",
         "NCCL uses a slower transport: {why}",
         "Unset NCCL_IB_DISABLE, NCCL_P2P_DISABLE and NCCL_SHM_DISABLE, and let NCCL see the devices (in a container: --ipc=host "
         "or --shm-size, --cap-add=IPC_LOCK, /dev/infiniband). The saving is unknown until it is measured: run stepscope "
         "calibrate on both.",
         scope=_RANKS, general=True, always=True, sureness=0.7),
    Kind("communication-bound", _half_the_bytes, "Exposed communication holds up the {waiter}",
         "more bytes cross the links than compute can hide{or}",
         "{how} Assumes half the bytes.",
         scope=_RANKS, needs=(Need.SIZES,), limit=_needed_ns, general=True, doubt=0.2),
)
# fmt: on
