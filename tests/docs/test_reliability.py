"""Every fault in tests/faults.toml names tests that exist, or says why there are none; its page is current."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
FAULTS = tomllib.loads((ROOT / "tests" / "faults.toml").read_text())["fault"]


def test_every_row_names_tests_that_exist_or_says_why_not() -> None:
    named = [test for fault in FAULTS for test in fault.get("tests", ())]
    exist = {path: functions(path) for path in {test.partition("::")[0] for test in named}}
    assert [test for test in named if test.partition("::")[2] not in exist[test.partition("::")[0]]] == []
    assert [fault["id"] for fault in FAULTS if not fault.get("tests") and not fault.get("not_tested")] == []


def test_page_is_current() -> None:
    tool = ROOT / "tools" / "write_reliability.py"
    done = subprocess.run([sys.executable, tool, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def numbers(name: str) -> list[str]:
    """Return the ids that a row's name stands for.

    >>> numbers("X10-X12")
    ['X10', 'X11', 'X12']
    """
    first, _, last = name.partition("-")
    return [f"{first[0]}{n}" for n in range(int(first[1:]), int(last[1:]) + 1)] if last else [first]


def functions(path: str) -> set[str]:
    file = ROOT / path
    tree = ast.parse(file.read_text()) if file.is_file() else ast.Module([], [])
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
