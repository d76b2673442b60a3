"""What does each line and each module cost per step?

Everything a rank did is summed by owner once (`sums`); lines and modules are sums over owners. A line's `own` cost is
where it is the innermost line of the user's; `inclusive` counts it wherever it is in the stack, so callers contain what
they call and lines do not add up. `backward` is the part of `inclusive` that ran in backward passes. Formulas:
`docs/metrics/findings.md`.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.analyze.collective_costs import host_compute
from stepscope.analyze.host_time import blocked_host
from stepscope.analyze.operators import CallCosts
from stepscope.analyze.ownership import Line, OwnedWork, Ownership
from stepscope.contract.run_folder import EXECUTING
from stepscope.intervals import Intervals, covered_ns, subtract, union
from stepscope.records import ArrayRecord, Row, dataclass
from stepscope.run.rank import Rank
from stepscope.trace.table import EventKind

# Records.


@dataclass(frozen=True)
class Cost:
    """What something took per step: the mean over steps, and over ranks where it is of several."""

    #: the host's own time: operators and Python, without waiting
    host_ns: float = 0.0
    #: the host waited in it: for the device, or for a collective on a rank without one
    blocked_ns: float = 0.0
    #: kernels, copies and sets, without communication; they may overlap
    device_ns: float = 0.0
    #: communication, with waiting for late ranks
    comm_ns: float = 0.0
    #: communication while the device computed and copied nothing
    exposed_ns: float = 0.0
    #: None where no operator of it has a known cost
    flops: float | None = None
    #: allocated, never mind when it was freed; None where memory was not recorded
    memory_bytes: float | None = None

    @property
    def largest_ns(self) -> float:
        """Return the largest of its times on the host and on the device: what it can be ranked by."""
        return max(self.host_ns + self.blocked_ns, self.device_ns + self.comm_ns)


@dataclass(frozen=True)
class CodeCosts:
    """What lines and modules cost, the largest first: `own`, `inclusive`, of that `backward`, `inclusive` `by_rank`."""

    lines: tuple[Row, ...]
    #: with the modules inside them
    modules: tuple[Row, ...]
    total: Cost
    #: what has no line
    unowned: Cost
    #: whether lines are those being executed; else those where functions are defined
    exact_lines: bool
    #: that have owners
    ranks: tuple[int, ...]

    @property
    def unowned_host_share(self) -> float | None:
        """Return the share of the host's time without a line, None where the host did nothing."""
        whole = self.total.host_ns + self.total.blocked_ns
        return (self.unowned.host_ns + self.unowned.blocked_ns) / whole if whole else None

    @property
    def unowned_device_share(self) -> float | None:
        """Return the share of device and communication time without a line, None where there was none."""
        whole = self.total.device_ns + self.total.comm_ns
        return (self.unowned.device_ns + self.unowned.comm_ns) / whole if whole else None


# Sums per distinct owner of a rank: host, device, communication, FLOPs and memory.

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
# things with their owners, and what they take by column
Pieces = list[tuple[OwnedWork, dict[str, npt.NDArray[Any]]]]

COLUMNS = tuple(f.name for f in fields(Cost))
FLOPS, MEMORY = COLUMNS.index("flops"), COLUMNS.index("memory_bytes")


@dataclass(frozen=True, eq=False, repr=False)
class OwnerSums(ArrayRecord):
    """What each distinct owner of a rank took per step: rows are owners, columns those of `Cost`."""

    owner: OwnedWork
    amount: Floats
    #: per column: whether it was recorded at all
    known: Mask
    #: of the host's recorded time, long stretches of Python aside: what the unprofiled step has
    host_share: float = 1.0


def owner_sums(owned: Ownership, calls: CallCosts, times_ns: tuple[float, float] | None = None) -> OwnerSums:
    """Return what each distinct owner of a rank took per step.

    Given the step with and without the profiler, the host's times are of the latter: long stretches of Python stay, the
    rest shrinks to fit.
    """
    rank = owned.rank
    host, work, c = owned.host, rank.work, rank.collectives
    waited = covered_ns(host_waits(rank), host.start_ns, host.end_ns) * host.runs
    took = (host.end_ns - host.start_ns) * host.runs
    rest = 1.0
    if times_ns is not None:
        python, steps = covered_ns(owned.long_python, host.start_ns, host.end_ns) * host.runs, max(len(rank.steps), 1)
        plain_ns, whole_ns = python.sum() / steps, max(times_ns[0], took.sum() / steps)
        rest = min(1.0, max(0.0, times_ns[1] - plain_ns) / max(whole_ns - plain_ns, 1.0))
        shorter = rest * took + (min(1.0, times_ns[1] / max(plain_ns, 1.0)) - rest) * python
        took, waited = shorter, waited * (shorter / np.maximum(took, 1.0))
    computes = (work.step >= 0) & (work.kind != EventKind.COMM_KERNEL)
    pieces: Pieces = [(host.owner, {"host_ns": took - waited, "blocked_ns": waited})]
    pieces.append((owned.by_work, {"device_ns": (work.end_ns - work.start_ns) * computes}))
    inside = c.step >= 0
    exposed = covered_ns(_exposed_comm(rank), c.start_ns, c.end_ns)
    pieces.append((owned.by_collective, {"comm_ns": (c.end_ns - c.start_ns) * inside, "exposed_ns": exposed * inside}))
    counted = calls.counted & (calls.step >= 0)
    pieces.append((owned.of_rows(calls.calls.row[counted]), {"flops": calls.flops[counted]}))
    rows, sizes = _allocations(rank)
    pieces.append((owned.of_rows(rows), {"memory_bytes": sizes}))
    known = np.ones(len(COLUMNS), bool)
    known[FLOPS], known[MEMORY] = bool(counted.any()), bool(len(rows))
    return replace(_summed(pieces, max(len(rank.steps), 1), known), host_share=rest)


def host_waits(rank: Rank) -> Intervals:
    """Return when the host waited: for the device, or for a collective on a rank without one."""
    if rank.has_device:
        return union(*blocked_host(rank))
    return subtract(union(rank.collectives.start_ns, rank.collectives.end_ns), host_compute(rank))


def _exposed_comm(rank: Rank) -> Intervals:
    if not rank.has_device:
        return host_waits(rank)
    work = rank.work
    computing = work.intervals(EventKind.KERNEL, EventKind.COPY, EventKind.SET)
    return subtract(work.intervals(EventKind.COMM_KERNEL), computing)


def _allocations(rank: Rank) -> tuple[npt.NDArray[np.int64], Floats]:
    rows = np.flatnonzero(rank.kinds == EventKind.MEMORY)
    trace = rank.trace
    size = trace.arg("alloc_bytes").at(rows, missing=0)
    device = trace.arg("alloc_device_type").at(rows, missing=0)
    keep = (size > 0) & (rank.steps.of(trace["ts_ns"][rows]) >= 0) & ((device > 0) == rank.has_device)
    return rows[keep], size[keep].astype(float)


def _summed(pieces: Pieces, steps: int, known: Mask) -> OwnerSums:
    key = np.concatenate(
        [np.stack((o.stack, o.caller, o.module, o.backward.astype(np.int32)), axis=1) for o, _ in pieces]
    )
    _, first, at = np.unique(_packed(key), return_index=True, return_inverse=True)
    amount = np.zeros((len(first), len(COLUMNS)))
    begin = 0
    for owner, columns in pieces:
        where = at[begin : begin + len(owner)]
        begin += len(owner)
        for name, values in columns.items():
            amount[:, COLUMNS.index(name)] += np.bincount(where, np.asarray(values, float), minlength=len(first))
    distinct = key[first]
    owner = OwnedWork(distinct[:, 0], distinct[:, 1], distinct[:, 2], distinct[:, 3].astype(bool))
    return OwnerSums(owner, amount / steps, known)


def _packed(key: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    out, size = np.zeros(len(key), np.int64), 1
    for column in key.T.astype(np.int64):
        base = int(column.max(initial=0)) + 2
        if size * base >= 1 << 62:
            _, out = np.unique(out, return_inverse=True)
            out, size = out.reshape(-1).astype(np.int64), len(key)
        out, size = out * base + column + 1, size * base
    return out


# of each line or module, by rank: its own cost, the inclusive one, and of that in backward passes
_ByKey = defaultdict[Any, Floats]
_OWN, _INCLUSIVE, _BACKWARD = range(3)


def code_costs(owned: Sequence[Ownership], sums: Sequence[OwnerSums]) -> CodeCosts | None:
    """Return the cost of lines and modules over these ranks, None where no rank has owners.

    `sums` are of the same ranks, in the same order.
    """
    if not owned:
        return None
    known = np.any([s.known for s in sums], axis=0)
    ranks = [one.rank.rank for one in owned]
    lines, modules, modules_of_lines = (_ByKey(lambda: np.zeros((len(owned), 3, len(COLUMNS)))) for _ in range(3))
    for i, (one, found) in enumerate(zip(owned, sums, strict=True)):
        _add_lines(lines, modules_of_lines, i, one, found)
        _add_modules(modules, i, one, found)
    return CodeCosts(
        lines=_line_costs(_largest_first(lines, ranks, known), modules_of_lines, owned),
        modules=tuple(
            Row(owner=f"module:{path}", file="", line=0, line_to=0, function="", is_user=True, module=path, **costs)
            for path, costs in _largest_first(modules, ranks, known)
        ),
        total=_cost(np.mean([s.amount.sum(axis=0) for s in sums], axis=0), known),
        unowned=_cost(np.mean([s.amount[s.owner.stack < 0].sum(axis=0) for s in sums], axis=0), known),
        exact_lines=all(one.lines == EXECUTING for one in owned),
        ranks=tuple(ranks),
    )


def _largest_first(amounts: _ByKey, ranks: Sequence[int], known: Mask) -> list[tuple[Any, dict[str, Any]]]:
    found = []
    for key, amount in amounts.items():
        own, inclusive, backward = (_cost(part, known) for part in amount.mean(axis=0))
        by_rank = {rank: _cost(part, known) for rank, part in zip(ranks, amount[:, _INCLUSIVE], strict=True)}
        found.append((key, {"own": own, "inclusive": inclusive, "backward": backward, "by_rank": by_rank}))
    return sorted(found, key=lambda one: (-one[1]["inclusive"].largest_ns, str(one[0])))


def _line_costs(
    costs: Sequence[tuple[Line, dict[str, Any]]], modules: _ByKey, owned: Sequence[Ownership]
) -> tuple[Row, ...]:
    frames = {(f.file, f.line): f for one in reversed(owned) for f in reversed(one.frames)}
    best: dict[Line, tuple[float, str]] = {}
    times = slice(0, COLUMNS.index("exposed_ns"))
    for (line, module), amount in modules.items():
        best[line] = max(best.get(line, (0.0, "")), (float(amount[:, _OWN, times].sum()), module))
    return tuple(
        Row(
            owner=f"{key[0]}:{key[1]}",  # what `--without` takes
            file=key[0],
            line=key[1],
            line_to=frames[key].line_to,  # see `Frame.line_to`
            function=frames[key].function,
            is_user=frames[key].is_user,
            module=best[key][1] or None if key in best else None,  # with most of its time, None outside modules
            **of_line,
        )
        for key, of_line in costs
    )


def _cost(amount: Floats, known: Mask) -> Cost:
    values = {name: float(value) for name, value in zip(COLUMNS, amount, strict=True)}
    return replace(
        Cost(**values),
        flops=values["flops"] if known[FLOPS] else None,
        memory_bytes=values["memory_bytes"] if known[MEMORY] else None,
    )


def _add_lines(lines: _ByKey, modules: _ByKey, rank: int, owned: Ownership, sums: OwnerSums) -> None:
    place, users, sets = [(f.file, f.line) for f in owned.frames], owned.stacks.innermost_user, owned.stacks.lines
    innermost = np.where(users >= 0, users, owned.stacks.innermost).tolist()
    for stack, _, module, _, amount in _rows(sums):
        if innermost[stack] >= 0:
            own = place[innermost[stack]]
            lines[own][rank, _OWN] += amount
            if module >= 0 and owned.modules[module]:
                modules[own, owned.modules[module]][rank, _OWN] += amount
    for n, rows in sets.things(sums.owner.stack, sums.owner.caller):
        lines[sets.lines[n]][rank, _INCLUSIVE] += sums.amount[rows].sum(axis=0)
        lines[sets.lines[n]][rank, _BACKWARD] += sums.amount[rows[sums.owner.backward[rows]]].sum(axis=0)


def _add_modules(modules: _ByKey, rank: int, owned: Ownership, sums: OwnerSums) -> None:
    for _, _, module, backward, amount in _rows(sums):
        path = owned.modules[module] if module >= 0 else ""
        if path:
            modules[path][rank, _OWN] += amount
        while path:
            modules[path][rank, _INCLUSIVE] += amount
            modules[path][rank, _BACKWARD] += amount * backward
            path = path.rpartition(".")[0]


def _rows(sums: OwnerSums) -> Iterable[tuple[int, int, int, bool, Floats]]:
    owner = sums.owner
    columns = (owner.stack.tolist(), owner.caller.tolist(), owner.module.tolist(), owner.backward.tolist())
    return zip(*columns, sums.amount, strict=True)


# Trees of lines (callers around callees) and of modules.
#
#     lines    train.py:40 > model.py:12 > model.py:31     by the owner's stack; backward counts at its forward
#     modules  layers > layers.3 > layers.3.mlp
#
# Costs are per step, the mean over ranks. A node's cost includes its children's; unowned work is the root's own. Small
# nodes are merged into "others", so a tree stays small however large the job is.

# (name, label) of lines or modules, outermost first
Path = tuple[tuple[str, str], ...]

MAX_NODES = 400
_MAX_DEPTH = 60
_HOST, _BLOCKED, _DEVICE, _COMM, _EXPOSED = range(5)
OTHERS = "others"


def code_trees(owned: Sequence[Ownership], sums: Sequence[OwnerSums]) -> Row:
    """Return the trees over lines and over modules of these ranks, the mean over them, in ns per step.

    A node has the `name` of a line or module (OTHERS for small ones together; empty at the root), the `label` to show
    (the function of a line, the last part of a module's path), its times and its `children`.
    """
    lines, modules = _GrowingNode(), _GrowingNode()
    for one, found in zip(owned, sums, strict=True):
        stacks = _line_paths(one)
        paths = [_module_path(path) for path in one.modules]
        owner = found.owner
        rows = zip(owner.stack.tolist(), owner.module.tolist(), owner.backward.tolist(), found.amount, strict=True)
        for stack, module, backward, amount in rows:
            part = amount / len(owned)
            lines.add(stacks[stack] if stack >= 0 else (), part, backward)
            modules.add(paths[module] if module >= 0 else (), part, backward)
    return Row(lines=_bounded(lines), modules=_bounded(modules))


def code_stacks(
    owned: Sequence[Ownership], sums: Sequence[OwnerSums], critical: Sequence[tuple[OwnedWork, Floats] | None]
) -> dict[tuple[Path, str], Floats]:
    """Return the time on the host, on the device and on the critical path of each stack of lines and its module.

    In ns per step. Host (with waiting) and device (with communication) are means over ranks; the critical path is one
    through all ranks. The stack is empty where the work has no owner, the module where it ran in none.
    """
    out: dict[tuple[Path, str], Floats] = {}
    for one, found, path in zip(owned, sums, critical, strict=True):
        stacks = [*_line_paths(one), ()]
        amount = found.amount / len(owned)
        times = np.stack((amount[:, _HOST] + amount[:, _BLOCKED], amount[:, _DEVICE] + amount[:, _COMM]), axis=1)
        parts = [(found.owner, np.pad(times, ((0, 0), (0, 1))))]
        if path is not None:
            parts.append((path[0], np.pad(path[1][:, None], ((0, 0), (2, 0)))))
        for owner, values in parts:
            keys = np.stack((owner.stack, owner.module), axis=1)
            distinct, at = np.unique(keys, axis=0, return_inverse=True)
            by_key = np.stack([np.bincount(at.reshape(-1), column, len(distinct)) for column in values.T], axis=1)
            for (stack, module), value in zip(distinct.tolist(), by_key, strict=True):
                key = stacks[stack], one.modules[module] if module >= 0 else ""
                out[key] = out.get(key, 0.0) + value
    return {key: value for key, value in out.items() if value.any()}


def _line_paths(owned: Ownership) -> list[Path]:
    names = [(f"{f.file}:{f.line}", f.function) for f in owned.frames]

    def grown(above: Path, frame: int) -> Path:
        deep = len(above) == _MAX_DEPTH or not owned.frames[frame].is_user
        return above if deep else (*above, names[frame])

    none: Path = ()
    paths = zip(owned.stacks.folded(none, grown), owned.stacks.innermost.tolist(), strict=False)
    return [path or ((names[frame],) if frame >= 0 else ()) for path, frame in paths]


def _module_path(path: str) -> Path:
    parts = path.split(".", _MAX_DEPTH)[:_MAX_DEPTH] if path else []
    return tuple((".".join(parts[: i + 1]), part) for i, part in enumerate(parts))


@dataclass(eq=False, repr=False)
class _GrowingNode(ArrayRecord):
    label: str = ""
    inside: Floats = field(default_factory=lambda: np.zeros(len(COLUMNS)))
    backward: Floats = field(default_factory=lambda: np.zeros(len(COLUMNS)))
    children: dict[str, "_GrowingNode"] = field(default_factory=dict)

    def add(self, path: tuple[tuple[str, str], ...], amount: Floats, backward: bool) -> None:
        node = self
        node._take(amount, backward)
        for name, label in path:
            node = node.children.setdefault(name, _GrowingNode(label))
            node._take(amount, backward)

    def _take(self, amount: Floats, backward: bool) -> None:
        self.inside += amount
        if backward:
            self.backward += amount

    @property
    def weight(self) -> float:
        return float(max(self.inside[_HOST] + self.inside[_BLOCKED], self.inside[_DEVICE] + self.inside[_COMM]))


def _bounded(root: _GrowingNode) -> Row:
    largest = sorted(_weights(root), reverse=True)[MAX_NODES // 2 :]
    return _node("", root, largest[0] if largest else 0.0)


def _weights(node: _GrowingNode) -> Iterable[float]:
    for child in node.children.values():
        yield child.weight
        yield from _weights(child)


def _node(name: str, grown: _GrowingNode, least: float) -> Row:
    shown = {k: c for k, c in grown.children.items() if c.weight > least or not least}
    rest = [c for k, c in grown.children.items() if k not in shown]
    children = [_node(k, c, least) for k, c in sorted(shown.items(), key=lambda kc: (-kc[1].weight, kc[0]))]
    if rest and any(c.weight for c in rest):
        sums = sum(c.inside for c in rest), sum(c.backward for c in rest)
        children.append(_node(OTHERS, _GrowingNode(f"{len(rest)} others", *sums), least))  # type: ignore[arg-type]
    inside, backward = grown.inside.tolist(), grown.backward.tolist()
    return Row(
        name=name,
        label=grown.label,
        host_ns=inside[_HOST] + inside[_BLOCKED],  # with waiting
        device_ns=inside[_DEVICE] + inside[_COMM],  # with communication
        comm_ns=inside[_COMM],
        exposed_ns=inside[_EXPOSED],
        backward_host_ns=backward[_HOST] + backward[_BLOCKED],  # of `host_ns`
        backward_device_ns=backward[_DEVICE] + backward[_COMM],
        children=children,
    )
