"""What do lines and modules take as trees, callers around what they called, modules around those inside them?

    lines    train.py:40 > model.py:12 > model.py:31     by the stack of whose work it is; backward lies at its forward
    modules  layers > layers.3 > layers.3.mlp

Costs are per step, the mean over ranks. A node's cost includes its children's; what has no owner is the root's own.
Small nodes are put together as "others", so that a tree stays small however large the job is.
"""

from collections.abc import Iterable, Sequence
from dataclasses import field

import numpy as np

from stepscope.analyze.owners.ownership import Ownership
from stepscope.analyze.owners.sums import COLUMNS, Floats, OwnerSums
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord

MAX_NODES = 400
_MAX_DEPTH = 60
_HOST, _BLOCKED, _DEVICE = (COLUMNS.index(name) for name in ("host_ns", "blocked_ns", "device_ns"))
_COMM, _EXPOSED = COLUMNS.index("comm_ns"), COLUMNS.index("exposed_ns")
OTHERS = "others"


@dataclass(frozen=True)
class CodeNode:
    """One line or module with all that it contains, ns per step."""

    name: str
    """`train.py:42`, `layers.3`; OTHERS for small ones together; empty at the root"""
    label: str
    """what to show: the function of a line, the last part of a module's path"""
    host_ns: float
    """with waiting"""
    device_ns: float
    """with communication"""
    comm_ns: float
    exposed_ns: float
    backward_host_ns: float
    """of `host_ns`"""
    backward_device_ns: float
    children: tuple["CodeNode", ...]

    def __len__(self) -> int:
        return 1 + sum(map(len, self.children))


@dataclass(frozen=True)
class CodeTrees:
    """What a run took by line and by module."""

    lines: CodeNode
    modules: CodeNode


def code_trees(owned: Sequence[Ownership], sums: Sequence[OwnerSums]) -> CodeTrees:
    """Return the trees over lines and over modules of these ranks, the mean over them."""
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
    return CodeTrees(_bounded(lines), _bounded(modules))


Path = tuple[tuple[str, str], ...]
"""(name, label) of lines or modules, outermost first"""


def _line_paths(owned: Ownership) -> list[Path]:
    """Return the lines of the user's in each stack; the innermost of a library where there is none."""
    names = [(f"{f.file}:{f.line}", f.function) for f in owned.frames]

    def grown(above: Path, frame: int) -> Path:
        deep = len(above) == _MAX_DEPTH or not owned.frames[frame].is_user
        return above if deep else (*above, names[frame])

    none: Path = ()
    users = owned.stacks.folded(none, grown)
    innermost = owned.stacks.innermost.tolist()
    return [path or ((names[frame],) if frame >= 0 else ()) for path, frame in zip(users, innermost, strict=False)]


def _module_path(path: str) -> Path:
    parts = path.split(".", _MAX_DEPTH)[:_MAX_DEPTH] if path else []
    return tuple((".".join(parts[: i + 1]), part) for i, part in enumerate(parts))


@dataclass(eq=False, repr=False)
class _GrowingNode(ArrayRecord):
    """A tree while it grows: all that is inside a node, and of that in backward."""

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
        """Return how much there is to see of it in any picture."""
        return float(max(self.inside[_HOST] + self.inside[_BLOCKED], self.inside[_DEVICE] + self.inside[_COMM]))


def _bounded(root: _GrowingNode) -> CodeNode:
    """Return a tree of at most about MAX_NODES nodes: those below the smallest weight that fits are put together."""
    weights = sorted(_weights(root), reverse=True)
    least = weights[MAX_NODES // 2] if len(weights) > MAX_NODES // 2 else 0.0
    return _node("", root, least)


def _weights(node: _GrowingNode) -> Iterable[float]:
    for child in node.children.values():
        yield child.weight
        yield from _weights(child)


def _node(name: str, grown: _GrowingNode, least: float) -> CodeNode:
    shown = {k: c for k, c in grown.children.items() if c.weight > least or not least}
    rest = [c for k, c in grown.children.items() if k not in shown]
    children = [_node(k, c, least) for k, c in sorted(shown.items(), key=lambda kc: (-kc[1].weight, kc[0]))]
    if rest and any(c.weight for c in rest):
        inside, backward = sum(c.inside for c in rest), sum(c.backward for c in rest)
        children.append(_node(OTHERS, _GrowingNode(f"{len(rest)} others", inside, backward), least))  # type: ignore[arg-type]
    return CodeNode(
        name=name,
        label=grown.label,
        host_ns=float(grown.inside[_HOST] + grown.inside[_BLOCKED]),
        device_ns=float(grown.inside[_DEVICE] + grown.inside[_COMM]),
        comm_ns=float(grown.inside[_COMM]),
        exposed_ns=float(grown.inside[_EXPOSED]),
        backward_host_ns=float(grown.backward[_HOST] + grown.backward[_BLOCKED]),
        backward_device_ns=float(grown.backward[_DEVICE] + grown.backward[_COMM]),
        children=tuple(children),
    )
