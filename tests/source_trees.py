"""The syntax trees of our own source, for tests that read it: parsed when a test asks, not at collection."""

import ast
import gc
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent / "src" / "stepscope"
JOB_SIDE = ("record/", "lab/bench/", "lab/tracker.py", "bench/", "integrations/", "demo_train.py")


@cache
def source_trees() -> dict[str, ast.Module]:
    """Return the tree of every file of ours by its path below the package."""
    gc.disable()  # millions of nodes that stay: the collector need not walk through them, now or after every test
    try:
        return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py"))}
    finally:
        gc.freeze()
        gc.enable()


@cache
def source_nodes() -> dict[str, tuple[ast.AST, ...]]:
    """Return all nodes of every file of ours by its path below the package."""
    nodes = {path: tuple(ast.walk(tree)) for path, tree in source_trees().items()}
    gc.freeze()
    return nodes


@cache
def desk_calls() -> tuple[tuple[str, str, ast.Call], ...]:
    """Return every call on the desk side: its file, the dotted name that is called, and its node."""
    return tuple(
        (path, _written(node.func), node)
        for path, nodes in source_nodes().items()
        if not path.startswith(JOB_SIDE)
        for node in nodes
        if isinstance(node, ast.Call)
    )


def _written(function: ast.expr) -> str:
    """Return a dotted name as it is written, without arguments and operators."""
    if isinstance(function, ast.Attribute):
        return f"{_written(function.value)}.{function.attr}"
    if isinstance(function, ast.Call):
        return f"{_written(function.func)}(...)"
    return function.id if isinstance(function, ast.Name) else "..."
