"""Trees over lines and modules hold what was planted, and stay small."""

from pathlib import Path

import numpy as np
from tests.analyze.owners.owned_folder import owned_folder

from stepscope.analyze.account import account_of
from stepscope.analyze.owner_costs import COLUMNS, MAX_NODES, OTHERS, CodeNode, _bounded, _GrowingNode


def found(node: CodeNode, *names: str) -> CodeNode:
    for name in names:
        node = next(child for child in node.children if child.name == name)
    return node


def test_callers_are_around_what_they_call(tmp_path: Path) -> None:
    trees = account_of(owned_folder(tmp_path)).code_trees
    assert trees is not None
    forward = found(trees.lines, "train.py:9", "train.py:10", "model.py:3")
    assert forward.device_ns == 150_000 and forward.backward_device_ns == 50_000
    assert found(trees.lines, "train.py:9").device_ns == trees.lines.device_ns == 180_000
    assert found(trees.modules, "blocks", "blocks.0", "blocks.0.up").device_ns == 150_000
    assert trees.modules.device_ns == 180_000  # the root holds what is in no module too


def test_many_small_nodes_are_put_together() -> None:
    grown = _GrowingNode()
    for k in range(5000):
        amount = np.zeros(len(COLUMNS))
        amount[COLUMNS.index("host_ns")] = 10_000 - k
        grown.add(((f"f{k % 50}.py:1", "f"), (f"g{k}.py:1", "g")), amount, False)
    tree = _bounded(grown)
    assert 50 < len(tree) <= MAX_NODES
    assert any(child.name == OTHERS for node in tree.children for child in node.children)
    for node in (tree, *tree.children):
        assert sum(child.host_ns for child in node.children) == node.host_ns
