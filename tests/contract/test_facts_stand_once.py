"""A fact of the contract stands in one file: the copies that drifted once do not come back."""

import ast
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "src" / "stepscope"
TREES = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in ROOT.rglob("*.py")}

FACTS = {
    "bus factors": ("bus_factor", "contract/collectives.py"),
    "names of collectives": ("op_name", "contract/collectives.py"),
    "sizes of element types": ("element_bytes", "contract/collectives.py"),
    "learning rate": ("learning_rate", "bench/learning_rate.py"),
    "names of regions": ("named_region", "contract/regions.py"),
}
LISTS = {
    "precisions of a training": ({"fp32", "tf32", "fp16", "bf16"}, "contract/precisions.py"),
    "precisions of chips": ({"fp64", "fp32", "tf32", "fp16", "bf16", "fp8"}, "contract/precisions.py"),
}
NUMBERS = {
    "workload defaults": ({"d_model", "num_layers", "num_heads", "vocab_size"}, "contract/workload.py"),
    "sizes of element types": ({"double", "half", "bfloat16", "long"}, "contract/collectives.py"),
}


def texts(nodes: Iterable[ast.AST | None]) -> set[str]:
    """Return the texts that are written down as constants among some nodes, in lower case."""
    return {str(n.value).lower() for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}


def listed(node: ast.AST) -> set[str]:
    return texts(node.elts) if isinstance(node, ast.Tuple | ast.List | ast.Set) else set()


def numbered(node: ast.AST) -> set[str]:
    """Return the keys of a dict whose values are numbers."""
    if not isinstance(node, ast.Dict):
        return set()
    pairs = zip(node.keys, node.values, strict=True)
    return texts(k for k, v in pairs if isinstance(v, ast.Constant) and isinstance(v.value, int))


@pytest.mark.parametrize("fact", FACTS)
def test_function_is_defined_once(fact: str) -> None:
    name, home = FACTS[fact]
    places = [
        path
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == name
    ]
    assert places == [home]


@pytest.mark.parametrize("fact", LISTS)
def test_list_is_written_once(fact: str) -> None:
    wanted, home = LISTS[fact]
    places = {path for path, tree in TREES.items() for node in ast.walk(tree) if listed(node) == wanted}
    assert places == {home}


@pytest.mark.parametrize("fact", NUMBERS)
def test_table_of_numbers_is_written_once(fact: str) -> None:
    wanted, home = NUMBERS[fact]
    places = {path for path, tree in TREES.items() for node in ast.walk(tree) if wanted <= numbered(node)}
    assert places <= {home}
