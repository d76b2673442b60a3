"""A fact of the contract stands in one file: the copies that drifted once do not come back."""

import ast
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.source_trees import source_nodes

from stepscope.contract import step_line
from stepscope.contract.flops import (
    ATTENTION,
    CONVOLUTION_BACKWARD,
    CONVOLUTIONS,
    NESTED_ATTENTION,
    NESTED_CONVOLUTIONS,
    NESTED_PRODUCTS,
    PRODUCTS,
)
from stepscope.contract.run_json import RunJson
from stepscope.cost.operators.operators import operator_cost
from stepscope.record.window.flops import flops_of

ROOT = Path(__file__).parents[2] / "src" / "stepscope"

FACTS = {
    "bus factors": ("bus_factor", "contract/collectives.py"),
    "names of collectives": ("op_name", "contract/collectives.py"),
    "sizes of element types": ("element_bytes", "contract/collectives.py"),
    "learning rate": ("learning_rate", "bench/learning_rate.py"),
    "FLOPs of matrix products": ("product_sizes", "contract/flops.py"),
    "FLOPs of attention": ("attention_flops", "contract/flops.py"),
    "FLOPs of convolutions": ("convolution_flops", "contract/flops.py"),
    "outputs of convolutions": ("convolution_output", "contract/flops.py"),
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


COUNTED = {
    *(*PRODUCTS, *NESTED_PRODUCTS, *ATTENTION, *NESTED_ATTENTION),
    *(*CONVOLUTIONS, *NESTED_CONVOLUTIONS, CONVOLUTION_BACKWARD),
}


def test_no_other_file_has_a_table_of_counted_operators() -> None:
    counted = {name.lower() for name in COUNTED}
    places = {
        path
        for path, nodes in source_nodes().items()
        for node in nodes
        if isinstance(node, ast.Dict) and len(texts(node.keys) & counted) > 1
    }
    assert places == {"contract/flops.py"}


@pytest.mark.parametrize("name", [*PRODUCTS, *ATTENTION, *CONVOLUTIONS, CONVOLUTION_BACKWARD])
def test_job_and_desk_count_the_same(name: str) -> None:
    """On shapes with no two sizes alike; the job counts what attention computes again, the desk tells it apart."""
    shapes, values = _call(name)
    types = json.dumps(["float" if shape else "" for shape in shapes])
    concrete = json.dumps(["" if value is None else str(value) for value in values])
    desk = operator_cost(name, dims=json.dumps(shapes), types=types, concrete=concrete)
    assert desk is not None and desk.flops > 0
    assert flops_of(name, shapes, values) == desk.flops + desk.recomputed_flops


def _call(name: str) -> tuple[list[list[int]], list[Any]]:
    """Return shapes and other arguments of a call."""
    if name in PRODUCTS:
        of_two = name in ("aten::mm", "aten::addmm", "aten::_scaled_mm", "aten::_int_mm")
        batched = [[7, 3], [3, 11]] if of_two else [[5, 7, 3], [5, 3, 11]]
        return [*([[11]] * PRODUCTS[name]), *([[5, 7, 3], [3, 11]] if "grouped" in name else batched)], []
    if name in ATTENTION:
        order = (0, 1, 2, 3) if ATTENTION[name].heads_first else (0, 2, 1, 3)
        inputs = [[2, 3, 5, 13]] * ATTENTION[name].backward + [[2, 3, 5, 11], [2, 3, 7, 11], [2, 3, 7, 13]]
        return [[shape[i] for i in order] for shape in inputs], []
    pair, stride = [[2, 6, 17, 19], [8, 6, 3, 5]], [2, 1]
    if name in CONVOLUTIONS:
        return [*pair, *([[]] * 7)], [None, None, None, stride, [1, 2], [1, 1], False, [0, 0], 1]
    return [[2, 8, 9, 19], *pair, *([[]] * 8)], [*([None] * 7), False, None, None, [True, True, False]]


@pytest.mark.parametrize("fact", FACTS)
def test_function_is_defined_once(fact: str) -> None:
    name, home = FACTS[fact]
    places = [
        path
        for path, nodes in source_nodes().items()
        for node in nodes
        if isinstance(node, ast.FunctionDef) and node.name == name
    ]
    assert places == [home]


@pytest.mark.parametrize("fact", LISTS)
def test_list_is_written_once(fact: str) -> None:
    wanted, home = LISTS[fact]
    places = {path for path, nodes in source_nodes().items() for node in nodes if listed(node) == wanted}
    assert places == {home}


@pytest.mark.parametrize("fact", NUMBERS)
def test_table_of_numbers_is_written_once(fact: str) -> None:
    wanted, home = NUMBERS[fact]
    places = {path for path, nodes in source_nodes().items() for node in nodes if wanted <= numbered(node)}
    assert places <= {home}


@pytest.mark.parametrize(
    "name",
    [
        *(step_line.FORWARD, step_line.BACKWARD, step_line.GRADIENT_SYNC, step_line.OPTIMIZER),
        *(step_line.LR_SCHEDULING, step_line.CLIPPING, step_line.LOADER_START, step_line.GARBAGE_COLLECTION),
    ],
)
def test_region_of_the_step_log_is_named_once(name: str) -> None:
    assert {path for path, nodes in source_nodes().items() if name in texts(nodes)} == {"contract/step_line.py"}


def test_desk_asks_run_json_only_for_what_the_job_writes() -> None:
    asked = {
        node.args[0].value
        for nodes in source_nodes().values()
        for node in nodes
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "get"
        and isinstance(node.func.value, ast.Attribute)
        and node.func.value.attr == "description"
        and isinstance(node.args[0], ast.Constant)
    }
    assert len(asked) > 5
    assert asked <= set(RunJson.__annotations__)
