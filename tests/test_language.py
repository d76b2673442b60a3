"""Errors say what is wrong and what to do; limits are called MAX_ and MIN_."""

import ast
import re

from tests.source_trees import source_nodes, source_trees

STILTED = re.compile(r"\bexpected\b.*\bfound\b")
LIMIT = re.compile(r"^_?(MOST|LEAST)(_|$)")


def text_of(node: ast.AST) -> str:
    """Return what is written down in a node, in order: strings, with nothing for what is filled in."""
    return " ".join(str(n.value) for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str))


def test_no_error_says_expected_and_found() -> None:
    assert STILTED.search(text_of(ast.parse('raise UsageError(f"--port: expected a number, found {port}")')))
    raised = [
        (path, text_of(node)) for path, nodes in source_nodes().items() for node in nodes if isinstance(node, ast.Raise)
    ]
    assert len(raised) > 100
    assert not [(path, text) for path, text in raised if STILTED.search(text)]


def test_limits_are_called_max_and_min() -> None:
    names = {
        (path, target.id)
        for path, tree in source_trees().items()
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    assert not [(path, name) for path, name in names if LIMIT.match(name)]
