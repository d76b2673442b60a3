"""Errors say what is wrong and what to do; limits are called MAX_ and MIN_."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent / "src" / "stepscope"
TREES = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py"))}
STILTED = re.compile(r"\bexpected\b.*\bfound\b")
LIMIT = re.compile(r"^_?(MOST|LEAST)(_|$)")


def text_of(node: ast.AST) -> str:
    """Return what is written down in a node, in order: strings, with nothing for what is filled in."""
    return " ".join(str(n.value) for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str))


def test_no_error_says_expected_and_found() -> None:
    assert STILTED.search(text_of(ast.parse('raise UsageError(f"--port: expected a number, found {port}")')))
    raised = [
        (path, text_of(node)) for path, tree in TREES.items() for node in ast.walk(tree) if isinstance(node, ast.Raise)
    ]
    assert len(raised) > 100
    assert not [(path, text) for path, text in raised if STILTED.search(text)]


def test_limits_are_called_max_and_min() -> None:
    names = {
        (path, target.id)
        for path, tree in TREES.items()
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    assert not [(path, name) for path, name in names if LIMIT.match(name)]
