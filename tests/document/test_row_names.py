"""Rows are read by attribute, which no type checker follows: every name that is read has to be declared somewhere."""

import argparse
import ast
import os
import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from concurrent.futures import Executor
from itertools import chain
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.source_trees import source_nodes

from stepscope.document.rows import SCHEMAS

# those that read rows
ROOMS = ("analyze", "diagnose", "document", "compare", "whatif", "report")
OTHERS = {"analyze/owner_lines.py", "report/view/server.py"}
"""read syntax trees and web requests"""
TYPES: tuple[Any, ...] = (
    str, bytes, int, float, dict, list, tuple, set, Path, deque, Counter, defaultdict, re.Pattern, re.Match, np.ndarray,
    argparse.Namespace, OSError, os.stat_result, Template, type, NamedTuple("Record", [("x", int)]), chain, Executor,
)  # fmt: skip


def declared(nodes: Iterable[ast.AST]) -> set[str]:
    """Return columns, fields, functions, assigned names, and the keywords that make a row."""
    names = {column.name for schema in SCHEMAS.values() for column in schema.columns}
    for node in nodes:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                names.add(name)
            case ast.keyword(arg=str(name)) | ast.arg(arg=name):
                names.add(name)
            case ast.Dict(keys=keys):
                names |= {str(key.value) for key in keys if isinstance(key, ast.Constant)}
    return names


@pytest.mark.slow
def test_every_name_read_of_a_row_is_declared() -> None:
    known = declared(chain.from_iterable(source_nodes().values())) | {name for kind in TYPES for name in dir(kind)}
    unknown = []
    for path, nodes in source_nodes().items():
        imports = [one for node in nodes if isinstance(node, ast.Import) for one in node.names]
        modules = {(one.asname or one.name).split(".")[0] for one in imports}
        of_rows = path.partition("/")[0] in ROOMS and path not in OTHERS
        for node in nodes if of_rows else ():
            if not isinstance(node, ast.Attribute) or {node.attr, node.attr.removesuffix("_ns")} & known:
                continue
            base: ast.expr = node
            while isinstance(base, ast.Attribute | ast.Call):
                base = base.value if isinstance(base, ast.Attribute) else base.func
            if not (isinstance(base, ast.Name) and base.id in modules):
                unknown.append(f"{path}:{node.lineno}: {node.attr}")
    assert not unknown
