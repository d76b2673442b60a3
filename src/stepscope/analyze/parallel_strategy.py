"""Which parallel strategies does the job use, and which process group serves which?

Every collective of a group gets a role from its operation and the phase of the step in which it was issued:

    all-reduce in backward (or after it)                   ddp
    all-gather in forward, reduce-scatter in backward      fsdp-zero2; gathered again in backward: fsdp-zero3
    reduction in backward, gather or broadcast after it    zero1 (zero2 where the reduction goes to the owner)
    all-reduce in forward and backward                     tp
    all-reduce after the optimizer, none in backward       local-sgd
    reduce-scatter in forward                              tp (with sequence parallelism)
    sends and receives along a chain, both ways            pp
    sends and receives around a ring, one way              cp
    all-to-all                                             ep (or sharded embeddings, where ranges say so)
    any of these without a backward pass and optimizer     tp

Names are better evidence than patterns: a group called `mesh_tp`, ranges called `FSDP::...`. The answer is *stated*
where names and traffic agree, a *pattern* from traffic alone, and a *guess* where the traffic fits several.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from stepscope.analyze.collective_costs import RankAccount, launched_in_steps, num_steps
from stepscope.analyze.host_time import records_operators
from stepscope.analyze.phases import Passes, Phase, Phases, collective_phases, passes, trains
from stepscope.contract.operations import EXPERT_KERNEL, OP_CODE, OPS
from stepscope.records import ArrayRecord, Row, dataclass
from stepscope.run.aligned import AlignedRun
from stepscope.run.clocks import POINT_TO_POINT
from stepscope.run.collectives import UNKNOWN_GROUP, Collectives, Group, header_groups
from stepscope.run.load import Run
from stepscope.run.rank import Rank
from stepscope.stats.robust import among, distinct
from stepscope.trace.table import EventKind, Int64s

# Other evidence in a trace: wrappers, expert kernels, uneven messages.

# stage, kind and micro-batch of a pipeline action, as frameworks mark it
MARKED_ACTION = re.compile(r"^(?:PP:)?(?P<stage>\d+)(?P<kind>[FBIW])(?P<microbatch>\d+)$")
_FSDP = ((2, re.compile(r"^FSDP::")), (1, re.compile(r"FullyShardedDataParallel")))
_EMBEDDINGS = re.compile(r"KJT|all2all_data|PooledEmbedding|alltoall_(fwd|bwd)_single|EmbeddingBagCollection")


def _hints_of_rank(rank: Rank, *, backward: bool, gradients: bool) -> Row:
    """Return what ranges in the trace say about the job."""
    names, c = rank.names(EventKind.ANNOTATION), rank.collectives
    exchanges = c.record_row[(c.op == OP_CODE["all_to_all"]) & (c.record_row >= 0)]
    splits = distinct(rank.trace.arg("in_split").at(exchanges, missing=-1))
    kernels = distinct(rank.work.name[rank.work.kind == EventKind.COMM_KERNEL])
    return Row(
        ddp=any(n.startswith("DistributedDataParallel.") for n in names),
        # version of FSDP, 0 without
        fsdp=next((version for version, p in _FSDP if any(p.search(n) for n in names)), 0),
        pipeline=any(MARKED_ACTION.match(n) for n in names),
        embeddings=any(_EMBEDDINGS.search(n) for n in names),
        # all-to-alls with an amount per peer, as only routed tokens need it
        routed=any((rank.trace.text(int(i)) or "[]").strip() != "[]" for i in splits),
        # backward passes were recorded
        trains=backward,
        # some rank ran a backward pass or an optimizer, or that is unknown
        gradients=gradients,
        # kernels of an expert-parallel library
        experts=any(EXPERT_KERNEL.search(rank.trace.strings[i]) for i in kernels if i >= 0),
    )


# Roles of a process group, by its traffic: operations, phases, sizes.
#
# A group can serve several strategies at once (gradients and expert tokens over the default group), so every
# operation is claimed by one role. Operations that move next to nothing (loss averages, norms, buffers, token
# counts of other exchanges) are set aside first as `small`.

STATED, PATTERN, GUESS = "stated", "pattern", "guess"
# operations of one kind and phase that move less than this share of the group's bytes define no strategy
_SMALL_SHARE = 0.01
# losses, norms and counts are no larger; gradients, parameters and activations of any model worth spreading are
_MAX_SCALAR_BYTES = 4096
# parameters gathered again in backward, at least this share of those gathered in forward: zero3
_AGAIN_SHARE = 0.3
# messages issued in the middle of backward passes, at least this share: no pipeline
_INSIDE_SHARE = 0.3
_GROUP_NAMES = (
    ("tp", re.compile(r"(^|[_\W])tp($|[_\W])|tensor", re.IGNORECASE)),
    ("pp", re.compile(r"(^|[_\W])pp($|[_\W])|pipe", re.IGNORECASE)),
    ("cp", re.compile(r"(^|[_\W])(cp|sp)($|[_\W])|context|ulysses|ring_att", re.IGNORECASE)),
    ("ep", re.compile(r"(^|[_\W])ep($|[_\W])|expert|moe", re.IGNORECASE)),
    ("dp", re.compile(r"(^|[_\W])(dp|hsdp|fsdp|ddp|dp_shard|dp_replicate)($|[_\W])|data_par|replicate", re.IGNORECASE)),
)


@dataclass(frozen=True, eq=False, repr=False)
class Role(ArrayRecord):
    """One use of a process group by one rank."""

    #: ddp, local-sgd, zero1, zero2, fsdp-zero2, fsdp-zero3, tp, pp, cp, ep, embedding, small or unknown
    kind: str
    #: stated, pattern or guess
    sure: str
    why: str
    #: in the rank's Collectives
    rows: Int64s
    #: what else the traffic fits
    instead: tuple[str, ...] = ()


def _group_said(group: Group) -> str | None:
    """Return the dimension that a group's name states: tp, pp, cp, ep or dp; None where it states none.

    >>> [group_said(Group("1", d, None, None)) for d in ("mesh_tp", "TENSOR_MODEL_PARALLEL_GROUP", "default_pg")]
    ['tp', 'tp', None]
    """
    text = f"{group.desc} {group.name}"
    return next((kind for kind, pattern in _GROUP_NAMES if pattern.search(text)), None)


def _roles_of_group(c: Collectives, group: Group, rows: Int64s, *, phases: Phases, hints: Row) -> list[Role]:
    use = _Use(c, rows, phases, hints, _group_said(group))
    roles = [role for claim in _CLAIMS for role in claim(use)]
    left = use.claim_free(use.free)
    if len(left):
        roles.append(Role("unknown", GUESS, "operations that fit no strategy known here", left))
    return roles


@dataclass(eq=False, repr=False)
class _Use(ArrayRecord):
    c: Collectives
    rows: Int64s
    phases: Phases
    hints: Row
    said: str | None

    def __post_init__(self) -> None:
        self.op = self.c.op[self.rows]
        self.phase = self.phases[self.rows]
        self.size = self.c.full_bytes[self.rows]
        self.free = np.ones(len(self.rows), bool)

    def of(self, *ops: str, during: tuple[Phase, ...] | None = None) -> npt.NDArray[np.bool_]:
        found = self.free & among(self.op, [OP_CODE[op] for op in ops])
        return found & among(self.phase, during) if during is not None else found

    def bytes(self, which: npt.NDArray[np.bool_]) -> int:
        return int(np.maximum(self.size[which], 1).sum())

    def claim_free(self, which: npt.NDArray[np.bool_]) -> Int64s:
        taken = which & self.free
        self.free = self.free & ~taken
        return self.rows[taken]


_MODEL_DIMENSIONS = ("tp", "pp", "cp", "ep")
_IN_FORWARD = (Phase.FORWARD,)
_IN_BACKWARD = (Phase.BACKWARD,)
_WITH_GRADIENTS = (Phase.BACKWARD, Phase.AFTER_BACKWARD)
_OF_OPTIMIZER = (Phase.AFTER_BACKWARD, Phase.OPTIMIZER)


def _as_said(use: _Use) -> Iterator[Role]:
    if use.said in _MODEL_DIMENSIONS and use.free.any():
        yield Role(use.said, STATED, "the group's name", use.claim_free(use.free))


def _small(use: _Use) -> Iterator[Role]:
    total, sizes = use.bytes(use.free), use.size[use.free]
    everywhere = int(np.maximum(use.c.full_bytes, 0).sum())
    scalars = len(sizes) and (sizes >= 0).all() and sizes.max() <= _MAX_SCALAR_BYTES
    if use.said is None and scalars and total < _SMALL_SHARE * everywhere:
        yield Role("small", PATTERN, "a few bytes at a time next to other groups", use.claim_free(use.free))
        return
    rows = []
    for op, phase in sorted({(int(o), int(p)) for o, p in zip(use.op, use.phase, strict=True)}):
        which = use.free & (use.op == op) & (use.phase == phase)
        known = (use.size[which] >= 0).all() or op == OP_CODE["barrier"]
        if which.any() and known and use.bytes(which) < _SMALL_SHARE * total:
            rows.append(use.claim_free(which))
    if rows:
        yield Role("small", PATTERN, "under 1 % of the group's bytes", np.concatenate(rows))


def _point_to_point(use: _Use) -> Iterator[Role]:
    which = use.free & among(use.op, POINT_TO_POINT)
    in_backward = float(among(use.phase[which], _IN_BACKWARD).mean()) if which.any() else 0.0
    trains = bool(among(use.phases, _IN_BACKWARD).any() or among(use.phases, _OF_OPTIMIZER).any())
    rows = use.claim_free(which)
    if not len(rows):
        return
    if use.said in _MODEL_DIMENSIONS:
        yield Role(use.said, STATED, "the group's name; sends and receives", rows)
    elif use.hints.pipeline:
        yield Role("pp", STATED, "ranges of pipeline stages; sends and receives", rows)
    elif in_backward >= _INSIDE_SHARE:
        # Stages hand on what a whole pass has computed; only layers exchange in the middle of one.
        yield Role("cp", PATTERN, "sends and receives in the middle of backward passes", rows)
    else:
        yield _chain_or_ring(use.c, rows, between_passes=trains)


def _chain_or_ring(c: Collectives, rows: Int64s, *, between_passes: bool) -> Role:
    mine = among(c.messages.collective, rows)
    sends, peer = c.messages.is_send[mine], c.messages.peer[mine]
    to, of = set(peer[sends].tolist()), set(peer[~sends].tolist())
    if not to and not of:
        why = "sends and receives between passes" if between_passes else "sends and receives, peers unknown"
        return Role("pp", PATTERN if between_passes else GUESS, why, rows, () if between_passes else ("cp",))
    if len(to) == len(of) == 1 and to != of and sends.sum() == (~sends).sum():
        return Role("cp", PATTERN, "sends to one rank and receives as much from another: a ring", rows)
    exchanges = (c.op[rows] == OP_CODE["send_recv"]).all() and (c.in_bytes[rows] == c.out_bytes[rows]).all()
    if to == of and len(to) == 1 and exchanges:
        return Role("cp", GUESS, "every operation sends to and receives from the one other rank", rows, ("pp",))
    both_ways = to & of
    why = "sends to and receives from the same neighbours: activations one way, gradients the other"
    return Role("pp", PATTERN if both_ways else GUESS, why, rows, () if both_ways else ("cp",))


def _exchanges(use: _Use) -> Iterator[Role]:
    rows = use.claim_free(use.of("all_to_all"))
    if not len(rows):
        return
    if use.said in _MODEL_DIMENSIONS:
        yield Role(use.said, STATED, "the group's name; all-to-all", rows)
    elif use.hints.embeddings:
        yield Role("embedding", STATED, "all-to-all, and ranges that name sharded embeddings", rows)
    elif use.hints.experts:
        yield Role("ep", STATED, "kernels of an expert-parallel library", rows)
    elif use.hints.routed or (use.c.in_bytes[rows] != use.c.out_bytes[rows]).any():
        yield Role("ep", PATTERN, "all-to-all with a separate amount for every peer: routed tokens", rows)
    elif (use.c.in_bytes[rows] < 0).all():
        why = "all-to-all of unknown amounts: experts, sequence parallelism or embeddings"
        yield Role("unknown", GUESS, why, rows)
    else:
        yield Role("ep", GUESS, "all-to-all of equal amounts", rows, ("cp", "embedding"))


def _beside_gradients(use: _Use) -> Iterator[Role]:
    """Set aside what a job under DDP exchanges in forward over the ranks that reduce its gradients (token counts,
    losses): ranks that hold replicas of a model do not share its layers.
    """
    gradients = use.of("all_reduce", during=_WITH_GRADIENTS)
    if not use.hints.ddp or not gradients.any():
        return
    known = use.size[gradients & (use.size >= 0)]
    exchanged = use.of("all_reduce", "all_gather", "broadcast", during=_IN_FORWARD)
    rows = use.claim_free(exchanged & ~(use.of("all_reduce") & among(use.size, known)))
    if len(rows):
        yield Role("small", PATTERN, "exchanged in forward by the ranks that hold replicas", rows)


def _averaged(use: _Use) -> Iterator[Role]:
    """Claim parameters that replicas average after their optimizer's step: nothing of their kind is in backward, where
    layers that ranks share would exchange gradients.
    """
    averaged = use.of("all_reduce", during=_IN_FORWARD)
    elsewhere = use.of("all_reduce", "reduce_scatter", during=_WITH_GRADIENTS)
    if use.hints.trains and averaged.any() and not elsewhere.any():
        why = "all-reduces after the optimizer's step, none in backward: parameters are averaged"
        yield Role("local-sgd", PATTERN, why, use.claim_free(averaged), ("tp",))


def _tensor_parallel(use: _Use) -> Iterator[Role]:
    scattered = use.of("reduce_scatter", during=_IN_FORWARD)
    if scattered.any() and use.hints.embeddings:
        # Row-wise sharded tables: every rank holds some rows, sums of looked-up rows are scattered.
        rows = use.claim_free(scattered | use.of("all_gather", during=_IN_BACKWARD))
        why = "reduce-scatters in forward, and ranges that name sharded embeddings: tables sharded by rows"
        yield Role("embedding", STATED, why, rows)
    elif scattered.any() and not use.hints.fsdp:
        rows = use.claim_free(use.of("reduce_scatter", "all_gather"))
        yield Role("tp", PATTERN, "reduce-scatters activations in forward (sequence parallel)", rows)
    forward = use.of("all_reduce", during=_IN_FORWARD)
    if not forward.any():
        return
    # The gradients of activations have the activations' sizes; anything else in backward is a parameter's gradient.
    backward = use.of("all_reduce", during=_IN_BACKWARD) & among(use.size, use.size[forward])
    sure = PATTERN if backward.any() or not use.of("all_reduce", during=_WITH_GRADIENTS).any() else GUESS
    why = "all-reduces in forward" + (" as well as in backward" if backward.any() else "")
    yield Role("tp", sure, why, use.claim_free(forward | backward))


def _activations(use: _Use) -> Iterator[Role]:
    """Claim what is left of a job without gradients: what its ranks exchange are activations."""
    if use.hints.gradients or use.hints.fsdp or use.hints.ddp or use.said == "dp":
        return
    rows = use.claim_free(use.of("all_reduce", "all_gather", "reduce_scatter"))
    if len(rows):
        yield Role("tp", GUESS, "activations exchanged in a job without gradients", rows, ("ep", "cp"))


def _claim_sharded(use: _Use) -> Iterator[Role]:
    gathered = use.of("all_gather", during=_IN_FORWARD)
    again = use.of("all_gather", during=_IN_BACKWARD)
    scattered = use.of("reduce_scatter")
    if not scattered.any() or not (gathered.any() or again.any()):
        return
    # Embeddings and heads, which stay gathered, may be most of the bytes: then the number of gathers decides.
    freed = use.bytes(again) >= _AGAIN_SHARE * use.bytes(gathered) or again.sum() >= _AGAIN_SHARE * gathered.sum()
    stage = 3 if again.any() and freed else 2
    why = "all-gathers in forward" + (" and again in backward" if stage == 3 else "") + ", reduce-scatters in backward"
    rows = use.claim_free(gathered | again | scattered)
    named = bool(use.hints.fsdp) or use.said == "dp"
    yield Role(f"fsdp-zero{stage}", STATED if named else PATTERN, why, rows, () if named else ("cp",))


def _claim_sharded_optimizer(use: _Use) -> Iterator[Role]:
    handed = use.of("all_gather", "broadcast", during=_OF_OPTIMIZER)
    reduced = use.of("all_reduce", "reduce", "reduce_scatter", during=_WITH_GRADIENTS)
    if not handed.any() or not reduced.any() or use.bytes(handed) < _AGAIN_SHARE * use.bytes(reduced) / 2:
        return
    whole = use.of("all_reduce", during=_WITH_GRADIENTS).any()
    why = "gradients " + ("all-reduced" if whole else "reduced to their owner") + ", parameters handed round afterwards"
    rows = use.claim_free(handed | reduced)
    yield Role("zero1" if whole else "zero2", PATTERN, why, rows, () if whole else ("zero1",))


def _claim_replicated(use: _Use) -> Iterator[Role]:
    reduced = use.of("all_reduce", during=_WITH_GRADIENTS)
    unknown = use.of("all_reduce", during=(Phase.UNKNOWN,))
    if reduced.any():
        overlapped = use.of("all_reduce", during=_IN_BACKWARD).any()
        rows = use.claim_free(reduced | unknown)
        why = "all-reduces " + ("in backward" if overlapped else "after backward, before the optimizer")
        yield Role("ddp", STATED if use.hints.ddp or use.said == "dp" else PATTERN, why, rows)
    elif unknown.any():
        alike = len(distinct(use.size[unknown])) == 1 and unknown.sum() > 3
        kind, other = ("tp", "ddp") if alike else ("ddp", "tp")
        yield Role(kind, GUESS, "all-reduces whose phase is unknown", use.claim_free(unknown), (other,))


def _only_gathers(use: _Use) -> Iterator[Role]:
    gathers, scatters = (use.of(op, during=(Phase.UNKNOWN,)) for op in ("all_gather", "reduce_scatter"))
    if gathers.any() and scatters.any():
        stage = 3 if gathers.sum() >= 1.5 * scatters.sum() else 2
        rows = use.claim_free(gathers | scatters)
        yield Role(f"fsdp-zero{stage}", GUESS, "gathers and scatters whose phase is unknown", rows, ("tp",))
    rows = use.claim_free(use.of("all_gather", "reduce_scatter", during=(Phase.UNKNOWN, Phase.FORWARD)))
    if len(rows):
        yield Role("tp", GUESS, "gathers without gradients to scatter", rows, ("cp", "fsdp-zero3"))


# in this order: each claims operations that those before it left
_CLAIMS: tuple[Callable[[_Use], Iterator[Role]], ...] = (
    _point_to_point,
    _exchanges,
    _small,
    _as_said,
    _beside_gradients,
    _averaged,
    _tensor_parallel,
    _activations,
    _claim_sharded,
    _claim_sharded_optimizer,
    _claim_replicated,
    _only_gathers,
)

SINGLE, UNKNOWN = "single", "unknown"
_SURENESS = (STATED, PATTERN, GUESS)
_ORDER = ("fsdp-zero3", "fsdp-zero2", "zero2", "zero1", "ddp", "local-sgd", "tp", "pp", "cp", "ep", "embedding")
_POINT_TO_POINT = ("pp", "cp")
# kinds that one group is only one of, by how much it takes to show them
_FAMILIES = (_POINT_TO_POINT, ("zero1", "zero2", "ddp"), ("fsdp-zero3", "fsdp-zero2"))


@dataclass(frozen=True, eq=False, repr=False)
class Strategy(ArrayRecord):
    """How the job is parallel."""

    #: e.g. `ddp`, `fsdp2-zero3 x tp2`, `pp4`; `single` for one process, or `unknown`
    name: str
    #: of the least certain dimension; None without any
    sure: str | None
    dimensions: tuple[Row, ...]
    #: traffic that defines no strategy: small exchanges and what fits none
    other: tuple[Row, ...]
    notes: tuple[str, ...]
    #: per rank, by kind: rows of its Collectives, by start
    rows: tuple[dict[str, Int64s], ...]
    #: per rank: its backward passes and optimizer steps
    passes: tuple[Passes, ...]
    #: per rank: the phase in which each of its collectives was issued
    phases: tuple[Phases, ...]

    def has(self, *kinds: str) -> bool:
        """Return whether any dimension is of one of these kinds."""
        return any(d.kind in kinds for d in self.dimensions)

    def rows_of(self, index: int, *kinds: str) -> Int64s:
        """Return the collectives of these kinds on one rank, by start."""
        found = [self.rows[index][kind] for kind in kinds if kind in self.rows[index]]
        return np.sort(np.concatenate(found)) if found else np.empty(0, np.int64)


def taking_part(
    shared: AlignedRun, strategy: Strategy, accounts: Sequence[RankAccount | None], *kinds: str
) -> Iterator[tuple[int, Rank, RankAccount, Int64s]]:
    """Yield index, rank, account and collectives of each rank that ran any of these kinds."""
    for index, (rank, account) in enumerate(zip(shared.run.ranks, accounts, strict=True)):
        rows = strategy.rows_of(index, *kinds)
        if account is not None and len(rows):
            yield index, rank, account, rows


def _computes(rank: Rank) -> bool:
    return bool((rank.work.kind == EventKind.KERNEL).any()) if rank.has_device else records_operators(rank)


def strategy_of(run: Run) -> Strategy:
    """Return the strategy that the traces of a run show."""
    each_passes = tuple(passes(rank) for rank in run.ranks)
    phases = tuple(collective_phases(rank, p) for rank, p in zip(run.ranks, each_passes, strict=True))
    gradients = trains(each_passes)
    hints = [
        _hints_of_rank(rank, backward=len(p.backward) > 0, gradients=gradients)
        for rank, p in zip(run.ranks, each_passes, strict=True)
    ]
    rows = [launched_in_steps(rank) for rank in run.ranks]
    if not any(map(len, rows)):  # no launches were recorded: what ran is all there is to tell by
        rows = [np.arange(len(rank.collectives)) for rank in run.ranks]
    named = any(h.ddp or h.fsdp or h.pipeline or h.embeddings for h in hints)
    if not named and not any(map(_computes, run.ranks)):  # a file of communication alone: what it is for does not show
        rows = [one[:0] for one in rows]
    roles = _agreed(run.ranks, [_rank_roles(*each) for each in zip(run.ranks, rows, phases, hints, strict=True)])
    dimensions = sorted(_dimensions(run, roles, phases), key=lambda d: ((*_ORDER, d.kind).index(d.kind), d.group))
    main = tuple(d for d in dimensions if d.kind in _ORDER)
    version = max((h.fsdp for h in hints), default=0)
    name = _name(main, version) or (SINGLE if (run.world_size or len(run.ranks)) == 1 else UNKNOWN)
    return Strategy(
        name=name,
        sure=_least_sure(main),
        dimensions=main,
        other=tuple(d for d in dimensions if d.kind not in _ORDER),
        notes=_notes(run, name, main),
        rows=tuple(_rows_by_kind(r) for r in roles),
        passes=each_passes,
        phases=phases,
    )


_Roles = list[tuple[int, Role]]
# rank index, group, role
_Part = tuple[int, Group, Role]


def _rank_roles(rank: Rank, rows: Int64s, phases: Phases, hints: Row) -> _Roles:
    c = rank.collectives
    out = []
    for group in distinct(c.group[rows]).tolist():
        mine = rows[c.group[rows] == group]
        unnamed = "; the group is not recorded" if c.groups[group] == UNKNOWN_GROUP else ""
        roles = _roles_of_group(c, c.groups[group], mine, phases=phases, hints=hints)
        out += [(group, replace(role, why=role.why + unnamed)) for role in roles]
    return out


def _agreed(ranks: Sequence[Rank], by_rank: Sequence[_Roles]) -> list[_Roles]:
    """Return the roles with one answer per kind of group where ranks differ.

    A rank whose trace was cut shows less than the others, and the ends of a chain look different from its middle.
    """
    best: dict[tuple[str, int | None, tuple[str, ...]], Role] = {}
    keyed = [[(_class_of(rank, group, role), group, role) for group, role in roles]
             for rank, roles in zip(ranks, by_rank, strict=True)]  # fmt: skip
    for key, _, role in (entry for entries in keyed for entry in entries):
        if key[2] and (key not in best or _weight(role, key[2]) < _weight(best[key], key[2])):
            best[key] = role

    def agree(role: Role, chosen: Role | None) -> Role:
        if chosen is None or chosen.kind == role.kind:
            return role
        return replace(chosen, rows=role.rows)

    return [[(group, agree(role, best.get(key))) for key, group, role in entries] for entries in keyed]


def _class_of(rank: Rank, group: int, role: Role) -> tuple[str, int | None, tuple[str, ...]]:
    g = rank.collectives.groups[group]
    return g.desc or g.name, g.size, next((f for f in _FAMILIES if role.kind in f), ())


def _weight(role: Role, family: tuple[str, ...]) -> tuple[int, int]:
    surest = _SURENESS.index(role.sure) if family == _POINT_TO_POINT else 0
    return surest, family.index(role.kind)


def _dimensions(run: Run, by_rank: Sequence[_Roles], phases: Sequence[Phases]) -> list[Row]:
    parts: dict[tuple[str, str, int | None], list[_Part]] = {}
    for index, roles in enumerate(by_rank):
        for group, role in roles:
            g = _likely_group(run.ranks[index], run.ranks[index].collectives.groups[group], role)
            size = g.size if g.size is not None else run.world_size if g == UNKNOWN_GROUP else None
            parts.setdefault((role.kind, g.desc or g.name, size), []).append((index, g, role))
    dimensions = []
    for (kind, desc, size), listed in parts.items():
        surest = min((role for _, _, role in listed), key=lambda r: _SURENESS.index(r.sure))
        members = {group.ranks for _, group, _ in listed if group.ranks is not None}
        dimensions.append(
            Row(
                kind=kind,
                size=size,  # ranks per group, None where unknown
                sure=surest.sure,
                why=surest.why,
                instead=surest.instead,
                group=desc,  # what the job calls it
                members=sorted(members),  # the ranks of each such group that the recorded ranks list
                uses=_uses(run, listed, phases),
            )
        )
    return dimensions


def _likely_group(rank: Rank, group: Group, role: Role) -> Group:
    if group != UNKNOWN_GROUP:
        return group
    wanted = "dp" if role.kind.startswith(("fsdp", "zero", "ddp")) else role.kind
    fitting = [g for g in header_groups(rank.trace.header).values() if _group_said(g) == wanted]
    if len(fitting) > 1:
        word = "shard" if role.kind.startswith("fsdp") else "replicate"
        fitting = [g for g in fitting if word in g.desc.lower()]
    return fitting[0] if len(fitting) == 1 else group


def _uses(run: Run, listed: list[_Part], phases: Sequence[Phases]) -> list[Row]:
    """Return each operation by phase, per rank and step: the mean over the ranks that take part."""
    counts: dict[tuple[int, int], float] = {}
    sizes: dict[tuple[int, int], float] = {}
    for index, _, role in listed:
        c, steps = run.ranks[index].collectives, num_steps(run.ranks[index]) * len({i for i, _, _ in listed})
        op, phase, size = c.op[role.rows], phases[index][role.rows], c.full_bytes[role.rows]
        for key in sorted({(int(o), int(p)) for o, p in zip(op, phase, strict=True)}):
            which = (op == key[0]) & (phase == key[1])
            counts[key] = counts.get(key, 0.0) + int(which.sum()) / steps
            known = size[which] if (size[which] >= 0).all() else np.array([np.nan])
            sizes[key] = sizes.get(key, 0.0) + float(known.sum()) / steps
    known = {key: None if np.isnan(size) else size for key, size in sizes.items()}
    return [
        Row(op=OPS[key[0]], phase=Phase(key[1]).name.lower(), count=n, size_bytes=known[key])
        for key, n in sorted(counts.items())
    ]


def _least_sure(dimensions: Sequence[Row]) -> str | None:
    best: dict[str, int] = {}
    for d in dimensions:
        best[d.kind] = min(best.get(d.kind, len(_SURENESS)), _SURENESS.index(d.sure))
    return _SURENESS[max(best.values())] if best else None


def _name(dimensions: Sequence[Row], fsdp_version: int) -> str:
    parts = [_part(d, fsdp_version, sharded=any(x.kind.startswith("fsdp") for x in dimensions)) for d in dimensions]
    return " x ".join(dict.fromkeys(parts))


def _part(d: Row, fsdp_version: int, *, sharded: bool) -> str:
    if d.kind.startswith("fsdp"):
        return d.kind.replace("fsdp", f"fsdp{fsdp_version}") if fsdp_version else d.kind
    if d.kind == "ddp":
        return f"replicate{d.size or ''}" if sharded else "ddp"
    return d.kind if d.kind.startswith(("zero", "local")) else f"{d.kind}{d.size or ''}"


def _notes(run: Run, name: str, main: Sequence[Row]) -> tuple[str, ...]:
    lines = [
        f"{d.kind} on group {d.group} is a {d.sure}: {d.why}; it could also be {' or '.join(d.instead)}"
        for d in main
        if d.instead
    ]
    if not main and name == UNKNOWN:
        count = sum(len(rank.collectives) for rank in run.ranks)
        lines.append(
            f"{count:,} communication operations were recorded, but none identifies the strategy: it is unknown"
            if count
            else "no communication was launched in the recorded steps, so the strategy is unknown"
        )
    said = run.description.get("strategy")
    if isinstance(said, str) and said:
        parts = name.split(" x ")
        if not all(any(part.startswith(word) for part in parts) for word in said.lower().split("+")):
            lines.append(f"the job reports {said}, its traffic shows {name}")
    return tuple(lines)


def _rows_by_kind(roles: _Roles) -> dict[str, Int64s]:
    by_kind: dict[str, list[Int64s]] = {}
    for _, role in roles:
        by_kind.setdefault(role.kind, []).append(role.rows)
    return {kind: np.sort(np.concatenate(rows)) for kind, rows in by_kind.items()}
