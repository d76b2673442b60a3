"""Rows are read by attribute, which no type checker follows: every name that is read has to be declared somewhere."""

import argparse
import ast
import os
import re
from collections import Counter, defaultdict, deque
from concurrent.futures import Executor
from itertools import chain
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

import numpy as np

import stepscope
from stepscope.document.rows import SCHEMAS

SOURCE = Path(stepscope.__file__).parent
# those that read rows
ROOMS = ("analyze", "diagnose", "document", "compare", "whatif", "report")
OTHERS = {"analyze/owner_lines.py", "report/view/server.py"}
"""read syntax trees and web requests"""
TYPES: tuple[Any, ...] = (
    str, bytes, int, float, dict, list, tuple, set, Path, deque, Counter, defaultdict, re.Pattern, re.Match, np.ndarray,
    argparse.Namespace, OSError, os.stat_result, Template, type, NamedTuple("Record", [("x", int)]), chain, Executor,
)  # fmt: skip


def declared(trees: list[ast.Module]) -> set[str]:
    """Return columns, fields, functions, assigned names, and the keywords that make a row."""
    names = {column.name for schema in SCHEMAS.values() for column in schema.columns}
    for node in (node for tree in trees for node in ast.walk(tree)):
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


def test_every_name_read_of_a_row_is_declared() -> None:
    trees = {
        str(path.relative_to(SOURCE)): ast.parse(path.read_text(encoding="utf-8")) for path in SOURCE.rglob("*.py")
    }
    known = declared(list(trees.values())) | {name for kind in TYPES for name in dir(kind)}
    unknown = []
    for path, tree in trees.items():
        imports = [one for node in ast.walk(tree) if isinstance(node, ast.Import) for one in node.names]
        modules = {(one.asname or one.name).split(".")[0] for one in imports}
        of_rows = path.partition("/")[0] in ROOMS and path not in OTHERS
        for node in ast.walk(tree) if of_rows else ():
            if not isinstance(node, ast.Attribute) or {node.attr, node.attr.removesuffix("_ns")} & known:
                continue
            base: ast.expr = node
            while isinstance(base, ast.Attribute | ast.Call):
                base = base.value if isinstance(base, ast.Attribute) else base.func
            if not (isinstance(base, ast.Name) and base.id in modules):
                unknown.append(f"{path}:{node.lineno}: {node.attr}")
    assert not unknown
