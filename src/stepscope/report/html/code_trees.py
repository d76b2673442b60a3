"""The trees over lines and modules as the page draws them: nested objects with times in milliseconds."""

from typing import Any

from stepscope.analyze.account import Account
from stepscope.analyze.owners.trees import CodeNode
from stepscope.units import NS_PER_MS

_TIMES = ("host", "device", "comm", "exposed", "backward_host", "backward_device")


def code_trees_of(account: Account) -> dict[str, Any] | None:
    """Return `lines` and `modules` as trees, None where nobody recorded owners."""
    trees = account.code_trees
    if trees is None:
        return None
    return {"lines": _node(trees.lines), "modules": _node(trees.modules)}


def _node(node: CodeNode) -> dict[str, Any]:
    """Return a node; times that are 0 and children that it lacks are left out."""
    times = {name: round(getattr(node, f"{name}_ns") / NS_PER_MS, 4) for name in _TIMES}
    return {
        "name": node.name,
        "label": node.label,
        **{name: value for name, value in times.items() if value},
        **({"children": [_node(child) for child in node.children]} if node.children else {}),
    }
