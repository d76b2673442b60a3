"""Which parallel strategies does the job use, and which process group serves which?

Every collective of a group gets a role from what it is and in which phase of the step it was asked for
(`group_roles.py` has the rules):

    all-reduce in backward (or after it)                   ddp
    all-gather in forward, reduce-scatter in backward      fsdp-zero2; gathered again in backward: fsdp-zero3
    reduction in backward, gather or broadcast after it    zero1 (zero2 where the reduction goes to the owner)
    all-reduce in forward and backward                     tp
    all-reduce after the optimizer, none in backward       local-sgd
    reduce-scatter in forward                              tp (with sequence parallelism)
    sends and receives along a chain, both ways            pp
    sends and receives around a ring, one way              cp
    all-to-all                                             ep (or sharded embeddings, where ranges say so)

Names are better evidence than patterns: a group called `mesh_tp`, ranges called `FSDP::...`. Where names and traffic
agree the answer is *stated*, where only the traffic speaks it is a *pattern*, and where it fits several a *guess*.
"""

from collections.abc import Sequence

import numpy as np

from stepscope.analyze.parallel.group_roles import GUESS, PATTERN, STATED, Role, group_said, roles_of_group
from stepscope.analyze.parallel.hints import Hints, hints_of_rank
from stepscope.analyze.ranks.traffic import launched_in_steps, num_steps
from stepscope.analyze.step.phases import Passes, Phase, Phases, collective_phases, passes
from stepscope.contract.collectives import OPS
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.run.collectives.groups import UNKNOWN_GROUP, Group, header_groups
from stepscope.run.load import Run
from stepscope.run.rank import Rank
from stepscope.stats.distinct import distinct
from stepscope.trace.table import Int64s

SINGLE, UNKNOWN = "single", "unknown"
_SURENESS = (STATED, PATTERN, GUESS)
_ORDER = ("fsdp-zero3", "fsdp-zero2", "zero2", "zero1", "ddp", "local-sgd", "tp", "pp", "cp", "ep", "embedding")
_POINT_TO_POINT = ("pp", "cp")
_FAMILIES = (_POINT_TO_POINT, ("zero1", "zero2", "ddp"), ("fsdp-zero3", "fsdp-zero2"))
"""kinds that one group is only one of, by how much it takes to show them"""


@dataclass(frozen=True)
class Use:
    """One kind of operation in one phase, per rank and step (mean over the ranks that take part)."""

    op: str
    phase: str
    count: float
    size_bytes: float | None


@dataclass(frozen=True)
class Dimension:
    """One way in which the job is parallel, and the process groups that serve it."""

    kind: str
    """as in `group_roles.Role`"""
    size: int | None
    """ranks per group, None where no trace says it"""
    sure: str
    """stated, pattern or guess"""
    why: str
    instead: tuple[str, ...]
    """what else the traffic fits"""
    group: str
    """what the job calls the group"""
    members: tuple[tuple[int, ...], ...]
    """the ranks of each such group, as far as the recorded ranks know them"""
    uses: tuple[Use, ...]


@dataclass(frozen=True, eq=False, repr=False)
class Strategy(ArrayRecord):
    """How the job is parallel."""

    name: str
    """e.g. `ddp`, `fsdp2-zero3 x tp2`, `pp4`; `single` for one process, `unknown` where nothing tells"""
    sure: str | None
    """of the least certain dimension; None without any"""
    dimensions: tuple[Dimension, ...]
    other: tuple[Dimension, ...]
    """traffic that defines no strategy: small exchanges and what fits none"""
    notes: tuple[str, ...]
    rows: tuple[dict[str, Int64s], ...]
    """per rank, by kind: rows of its Collectives, by start"""
    passes: tuple[Passes, ...]
    """per rank: its backward passes and optimizer steps"""
    phases: tuple[Phases, ...]
    """per rank: the phase in which each of its collectives was asked for"""

    def has(self, *kinds: str) -> bool:
        """Return whether any dimension is of one of these kinds."""
        return any(d.kind in kinds for d in self.dimensions)

    def rows_of(self, index: int, *kinds: str) -> Int64s:
        """Return the collectives of these kinds on one rank, by start."""
        found = [self.rows[index][kind] for kind in kinds if kind in self.rows[index]]
        return np.sort(np.concatenate(found)) if found else np.empty(0, np.int64)


def strategy_of(run: Run) -> Strategy:
    """Return the strategy that the traces of a run show."""
    each_passes = tuple(passes(rank) for rank in run.ranks)
    phases = tuple(collective_phases(rank, p) for rank, p in zip(run.ranks, each_passes, strict=True))
    hints = [hints_of_rank(rank, trains=len(p.backward) > 0) for rank, p in zip(run.ranks, each_passes, strict=True)]
    rows = [launched_in_steps(rank) for rank in run.ranks]
    if not any(map(len, rows)):  # no launches were recorded: what ran is all there is to tell by
        rows = [np.arange(len(rank.collectives)) for rank in run.ranks]
    roles = _agreed(run.ranks, [_rank_roles(*each) for each in zip(run.ranks, rows, phases, hints, strict=True)])
    dimensions = sorted(_dimensions(run, roles, phases), key=_rank_in_name)
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
_Part = tuple[int, Group, Role]
"""rank index, group, role"""


def _rank_roles(rank: Rank, rows: Int64s, phases: Phases, hints: Hints) -> _Roles:
    """Return `(group, role)` for these operations of a rank."""
    c = rank.collectives
    out = []
    for group in distinct(c.group[rows]).tolist():
        mine = rows[c.group[rows] == group]
        out += [(group, role) for role in roles_of_group(c, c.groups[group], mine, phases=phases, hints=hints)]
    return [(group, _in_words(rank, group, role)) for group, role in out]


def _in_words(rank: Rank, group: int, role: Role) -> Role:
    """Return the role, less sure where the trace does not even say which group it was."""
    if rank.collectives.groups[group] != UNKNOWN_GROUP:
        return role
    return Role(role.kind, role.sure, f"{role.why}; the trace does not say which group", role.rows, role.instead)


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
        return Role(chosen.kind, chosen.sure, chosen.why, role.rows, chosen.instead)

    return [[(group, agree(role, best.get(key))) for key, group, role in entries] for entries in keyed]


def _class_of(rank: Rank, group: int, role: Role) -> tuple[str, int | None, tuple[str, ...]]:
    g = rank.collectives.groups[group]
    return g.desc or g.name, g.size, next((f for f in _FAMILIES if role.kind in f), ())


def _weight(role: Role, family: tuple[str, ...]) -> tuple[int, int]:
    """Return the order in which answers win: among data-parallel kinds the one that takes more to show."""
    surest = _SURENESS.index(role.sure) if family == _POINT_TO_POINT else 0
    return surest, family.index(role.kind)


def _dimensions(run: Run, by_rank: Sequence[_Roles], phases: Sequence[Phases]) -> list[Dimension]:
    """Return one dimension per kind and class of groups (the same name and size on several ranks)."""
    parts: dict[tuple[str, str, int | None], list[_Part]] = {}
    for index, roles in enumerate(by_rank):
        for group, role in roles:
            g = _likely_group(run.ranks[index], run.ranks[index].collectives.groups[group], role)
            size = g.size if g.size is not None else run.world_size if g == UNKNOWN_GROUP else None
            parts.setdefault((role.kind, g.desc or g.name, size), []).append((index, g, role))
    return [_dimension(run, kind, desc, size, listed, phases) for (kind, desc, size), listed in parts.items()]


def _likely_group(rank: Rank, group: Group, role: Role) -> Group:
    """Return the group, or where the trace does not say it the one group of the rank whose name fits the role."""
    if group != UNKNOWN_GROUP:
        return group
    wanted = "dp" if role.kind.startswith(("fsdp", "zero", "ddp")) else role.kind
    fitting = [g for g in header_groups(rank.trace.header).values() if group_said(g) == wanted]
    if len(fitting) > 1:
        word = "shard" if role.kind.startswith("fsdp") else "replicate"
        fitting = [g for g in fitting if word in g.desc.lower()]
    return fitting[0] if len(fitting) == 1 else group


def _dimension(
    run: Run, kind: str, desc: str, size: int | None, listed: list[_Part], phases: Sequence[Phases]
) -> Dimension:
    surest = min((role for _, _, role in listed), key=lambda r: _SURENESS.index(r.sure))
    members = {group.ranks for _, group, _ in listed}
    return Dimension(
        kind=kind,
        size=size,
        sure=surest.sure,
        why=surest.why,
        instead=surest.instead,
        group=desc,
        members=tuple(sorted(m for m in members if m is not None)),
        uses=_uses(run, listed, phases),
    )


def _uses(run: Run, listed: list[_Part], phases: Sequence[Phases]) -> tuple[Use, ...]:
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
    return tuple(
        Use(OPS[op], Phase(phase).name.lower(), n, None if np.isnan(sizes[op, phase]) else sizes[op, phase])
        for (op, phase), n in sorted(counts.items())
    )


def _least_sure(dimensions: Sequence[Dimension]) -> str | None:
    """Return how sure the least certain kind is, each kind by its best evidence."""
    best: dict[str, int] = {}
    for d in dimensions:
        best[d.kind] = min(best.get(d.kind, len(_SURENESS)), _SURENESS.index(d.sure))
    return _SURENESS[max(best.values())] if best else None


def _rank_in_name(d: Dimension) -> tuple[int, str]:
    return (_ORDER.index(d.kind) if d.kind in _ORDER else len(_ORDER), d.group)


def _name(dimensions: Sequence[Dimension], fsdp_version: int) -> str:
    parts = [_part(d, fsdp_version, sharded=any(x.kind.startswith("fsdp") for x in dimensions)) for d in dimensions]
    return " x ".join(dict.fromkeys(parts))


def _part(d: Dimension, fsdp_version: int, *, sharded: bool) -> str:
    if d.kind.startswith("fsdp"):
        return d.kind.replace("fsdp", f"fsdp{fsdp_version}") if fsdp_version else d.kind
    if d.kind == "ddp":
        return f"replicate{d.size or ''}" if sharded else "ddp"
    return d.kind if d.kind.startswith(("zero", "local")) else f"{d.kind}{d.size or ''}"


def _notes(run: Run, name: str, main: Sequence[Dimension]) -> tuple[str, ...]:
    lines = [
        f"{d.kind} on group {d.group} is a {d.sure}: {d.why}; it could also be {' or '.join(d.instead)}"
        for d in main
        if d.instead
    ]
    if not main and name == UNKNOWN:
        lines.append(_why_unknown(run))
    said = run.description.get("strategy")
    if isinstance(said, str) and said and not _agrees(said, name):
        lines.append(f"the job itself says {said}, its traffic {name}")
    return tuple(lines)


def _why_unknown(run: Run) -> str:
    count = sum(len(rank.collectives) for rank in run.ranks)
    if not count:
        return "no communication was launched in the recorded steps, so the strategy is unknown"
    return f"{count:,} communication operations were recorded, but none tells the strategy: it is unknown"


def _agrees(said: str, name: str) -> bool:
    """Return whether every part that the job names (`fsdp2+tp`) begins a part that was recognised."""
    parts = name.split(" x ")
    return all(any(part.startswith(word) for part in parts) for word in said.lower().split("+"))


def _rows_by_kind(roles: _Roles) -> dict[str, Int64s]:
    by_kind: dict[str, list[Int64s]] = {}
    for _, role in roles:
        by_kind.setdefault(role.kind, []).append(role.rows)
    return {kind: np.sort(np.concatenate(rows)) for kind, rows in by_kind.items()}
