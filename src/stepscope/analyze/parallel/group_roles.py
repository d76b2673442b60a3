"""What is one process group for? Rules over its traffic: which operations, in which phase, of which sizes.

A group can serve several strategies at once (gradients and expert tokens over the default group), so every
operation is claimed by one role. Operations that move next to nothing (loss averages, norms, buffers, token
counts of other exchanges) are set aside first as `small`.
"""

import re
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from stepscope.analyze.parallel.hints import Hints
from stepscope.analyze.step.phases import Phase, Phases
from stepscope.contract.collectives import OP_CODE
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.run.collectives.groups import Group
from stepscope.run.collectives.table import Collectives
from stepscope.run.matching.match import POINT_TO_POINT
from stepscope.stats.distinct import among, distinct
from stepscope.trace.table import Int64s

STATED, PATTERN, GUESS = "stated", "pattern", "guess"
SMALL_SHARE = 0.01
"""operations of one kind and phase that move less than this share of the group's bytes define no strategy"""
_MAX_SCALAR_BYTES = 4096
"""losses, norms and counts are no larger; gradients, parameters and activations of any model worth spreading are"""
_AGAIN_SHARE = 0.3
"""parameters gathered again in backward, at least this share of those gathered in forward: zero3"""
_INSIDE_SHARE = 0.3
"""messages asked for in the middle of backward passes, at least this share: no pipeline"""
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

    kind: str
    """ddp, local-sgd, zero1, zero2, fsdp-zero2, fsdp-zero3, tp, pp, cp, ep, embedding, small or unknown"""
    sure: str
    """stated, pattern or guess"""
    why: str
    rows: Int64s
    """in the rank's Collectives"""
    instead: tuple[str, ...] = ()
    """what else the traffic fits"""


def group_said(group: Group) -> str | None:
    """Return the dimension that a group's name states: tp, pp, cp, ep or dp; None where it states none.

    >>> [group_said(Group("1", d, None, None)) for d in ("mesh_tp", "TENSOR_MODEL_PARALLEL_GROUP", "default_pg")]
    ['tp', 'tp', None]
    """
    text = f"{group.desc} {group.name}"
    return next((kind for kind, pattern in _GROUP_NAMES if pattern.search(text)), None)


def roles_of_group(c: Collectives, group: Group, rows: Int64s, *, phases: Phases, hints: Hints) -> list[Role]:
    """Return the roles of one group, every one of its operations `rows` claimed by exactly one."""
    use = _Use(c, rows, phases, hints, group_said(group))
    roles = list(_claims(use))
    left = use.claim_free(np.ones(len(rows), bool))
    if len(left):
        roles.append(Role("unknown", GUESS, "operations that fit no strategy known here", left))
    return roles


@dataclass(eq=False, repr=False)
class _Use(ArrayRecord):
    """The operations of one group, and which of them still have no role."""

    c: Collectives
    rows: Int64s
    phases: Phases
    hints: Hints
    said: str | None

    def __post_init__(self) -> None:
        self.op = self.c.op[self.rows]
        self.phase = self.phases[self.rows]
        self.size = self.c.full_bytes[self.rows]
        self.free = np.ones(len(self.rows), bool)

    def of(self, *ops: str, during: tuple[Phase, ...] | None = None) -> npt.NDArray[np.bool_]:
        """Return which free operations are of these kinds and phases."""
        found = self.free & among(self.op, [OP_CODE[op] for op in ops])
        return found & among(self.phase, during) if during is not None else found

    def bytes(self, which: npt.NDArray[np.bool_]) -> int:
        """Return what they move in all; operations of unknown size count as 1 byte each."""
        return int(np.maximum(self.size[which], 1).sum())

    def claim_free(self, which: npt.NDArray[np.bool_]) -> Int64s:
        """Return the rows of those that are free and take them."""
        taken = which & self.free
        self.free = self.free & ~taken
        return self.rows[taken]


_MODEL_DIMENSIONS = ("tp", "pp", "cp", "ep")
_IN_FORWARD = (Phase.FORWARD,)
_IN_BACKWARD = (Phase.BACKWARD,)
_WITH_GRADIENTS = (Phase.BACKWARD, Phase.AFTER_BACKWARD)
_OF_OPTIMIZER = (Phase.AFTER_BACKWARD, Phase.OPTIMIZER)


def _claims(use: _Use) -> Iterator[Role]:
    yield from _point_to_point(use)
    yield from _exchanges(use)
    yield from _small(use)
    if use.said in _MODEL_DIMENSIONS:
        yield from _as_said(use)
    yield from _beside_gradients(use)
    yield from _averaged(use)
    yield from _tensor_parallel(use)
    yield from _claim_sharded(use)
    yield from _claim_sharded_optimizer(use)
    yield from _claim_replicated(use)
    yield from _only_gathers(use)


def _as_said(use: _Use) -> Iterator[Role]:
    rows = use.claim_free(use.free)
    if len(rows) and use.said:
        yield Role(use.said, STATED, "the group's name", rows)


def _beside_others(use: _Use, total: int) -> bool:
    """Return whether no operation of the group moves more than a loss or a norm, while other groups move the rest."""
    sizes = use.size[use.free]
    everywhere = int(np.maximum(use.c.full_bytes, 0).sum())
    return bool((sizes >= 0).all()) and int(sizes.max()) <= _MAX_SCALAR_BYTES and total < SMALL_SHARE * everywhere


def _small(use: _Use) -> Iterator[Role]:
    """Set aside kinds of operations that hardly move anything, per kind and phase, and groups that never do."""
    total = use.bytes(use.free)
    if use.said is None and use.free.any() and _beside_others(use, total):
        yield Role("small", PATTERN, "a few bytes at a time beside other groups", use.claim_free(use.free))
        return
    rows = []
    for op, phase in sorted({(int(o), int(p)) for o, p in zip(use.op, use.phase, strict=True)}):
        which = use.free & (use.op == op) & (use.phase == phase)
        known = (use.size[which] >= 0).all() or op == OP_CODE["barrier"]
        if which.any() and known and use.bytes(which) < SMALL_SHARE * total:
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
    """Return pp for messages both ways along a chain, cp for messages one way around a ring."""
    mine = among(c.messages.collective, rows)
    sends, peer = c.messages.is_send[mine], c.messages.peer[mine]
    to, of = set(peer[sends].tolist()), set(peer[~sends].tolist())
    if not to and not of:
        why = "sends and receives between passes" if between_passes else "sends and receives, peers unknown"
        return Role("pp", PATTERN if between_passes else GUESS, why, rows, () if between_passes else ("cp",))
    if len(to) == len(of) == 1 and to != of and sends.sum() == (~sends).sum():
        return Role("cp", PATTERN, "sends to one rank and receives as much from another: a ring", rows)
    if to == of and len(to) == 1 and _all_exchange(c, rows):
        return Role("cp", GUESS, "every operation sends to and receives from the one other rank", rows, ("pp",))
    both_ways = to & of
    why = "sends to and receives from the same neighbours: activations one way, gradients the other"
    return Role("pp", PATTERN if both_ways else GUESS, why, rows, () if both_ways else ("cp",))


def _all_exchange(c: Collectives, rows: Int64s) -> bool:
    """Return whether each operation both sends and receives, as much one way as the other."""
    return bool((c.op[rows] == OP_CODE["send_recv"]).all() and (c.in_bytes[rows] == c.out_bytes[rows]).all())


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
        yield Role("ep", PATTERN, "all-to-all with an amount of its own for every peer: routed tokens", rows)
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
    as_gradients = use.of("all_reduce") & among(use.size, known)
    rows = use.claim_free(exchanged & ~as_gradients)
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
    """Claim activations: reduced in forward, or scattered in forward, and their counterparts in backward."""
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


def _claim_sharded(use: _Use) -> Iterator[Role]:
    """Claim parameters gathered before use and gradients scattered after."""
    gathered = use.of("all_gather", during=_IN_FORWARD)
    again = use.of("all_gather", during=_IN_BACKWARD)
    scattered = use.of("reduce_scatter")
    if not scattered.any() or not (gathered.any() or again.any()):
        return
    # Embeddings and heads, which stay gathered, may be most of the bytes: then the number of gathers tells.
    freed = use.bytes(again) >= _AGAIN_SHARE * use.bytes(gathered) or again.sum() >= _AGAIN_SHARE * gathered.sum()
    stage = 3 if again.any() and freed else 2
    why = "all-gathers in forward" + (" and again in backward" if stage == 3 else "") + ", reduce-scatters in backward"
    rows = use.claim_free(gathered | again | scattered)
    named = bool(use.hints.fsdp) or use.said == "dp"
    yield Role(f"fsdp-zero{stage}", STATED if named else PATTERN, why, rows, () if named else ("cp",))


def _claim_sharded_optimizer(use: _Use) -> Iterator[Role]:
    """Claim gradients reduced in backward and parameters handed round after the optimizer's step."""
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
    """Claim gathers without gradients to scatter (activations of a forward-only job), and those of unknown phase."""
    gathers, scatters = (use.of(op, during=(Phase.UNKNOWN,)) for op in ("all_gather", "reduce_scatter"))
    if gathers.any() and scatters.any():
        stage = 3 if gathers.sum() >= 1.5 * scatters.sum() else 2
        rows = use.claim_free(gathers | scatters)
        yield Role(f"fsdp-zero{stage}", GUESS, "gathers and scatters whose phase is unknown", rows, ("tp",))
    rows = use.claim_free(use.of("all_gather", "reduce_scatter", during=(Phase.UNKNOWN, Phase.FORWARD)))
    if len(rows):
        yield Role("tp", GUESS, "gathers without gradients to scatter", rows, ("cp", "fsdp-zero3"))
