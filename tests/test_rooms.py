"""Imports flow one way, and the two sides never meet. Imports by name (`import_module("...")`) count like any other."""

import ast
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from tests.source_trees import ROOT, source_nodes

# Standard library only: both sides stand on it.
GROUND = (
    "errors", "units", "version", "output_path", "digest", "side_file", "json_text", "bounded_server", "memory_limit",
    "contract", "cache_files", "additions",
)  # fmt: skip
SMALL = ("dataclass", "intervals", "records", "stats")
DESK = (  # lowest first
    *("trace", "run", "cost", "analyze", "diagnose", "whatif", "document", "compare"),
    *("tables", "report", "analysis", "cli"),
)
JOB = ("record", "integrations", "demo_train")
# The laboratory stands on all of the profiler; the last two are over both of its sides.
LAB_JOB = ("lab.tracker", "lab.bench")
LAB_DESK = (
    "lab.predict", "lab.experiment", "lab.results", "lab.regression", "lab.tune", "lab.report", "lab.toolkit",
    "lab.exercises", "lab.cli",
)  # fmt: skip
OVER_BOTH = ("lab.toolkit", "lab.exercises", "lab.cli")
# other names of modules of the laboratory, for jobs and scripts
ALIASES = "bench"
TABLE_LIBRARIES = {"numpy", "wasmtime", "zlib_ng", "zstandard", "rich", "pyarrow", "duckdb"}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("stepscope", *(parts[:-1] if parts[-1] == "__init__" else parts)))


MODULES = {module_name(path): path.relative_to(ROOT).as_posix() for path in sorted(ROOT.rglob("*.py"))}
"""where each module is, by its name"""


@cache
def used_by(name: str) -> frozenset[str]:
    return frozenset(names_used(source_nodes()[MODULES[name]]))


def names_used(nodes: Iterable[ast.AST]) -> set[str]:
    """Return what a file imports: by statement, and by any string that is the name of a module or begins one."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module} - {"stepscope"}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= named_in_text(node.value)
    return found


def named_in_text(text: str) -> set[str]:
    """Return the module that a string such as `stepscope.lab.cli.bench.` or `stepscope.lab.bench.rank:main` names."""
    name = text.partition(":")[0].rstrip(".")
    return {name} if name.startswith("stepscope.") and name in MODULES else set()


def dependencies(name: str) -> set[str]:
    used = {n if n in MODULES else n.rpartition(".")[0] for n in used_by(name)}
    said = ALIASES if room(name).startswith("lab") else None  # in help texts
    return {n for n in used if n in MODULES and n != "stepscope" and room(n) != said} - {name}


def room(name: str) -> str:
    parts = name.split(".")[1:]
    return ".".join(parts[: 2 if parts[0] == "lab" else 1]) if parts else "__init__"


def allowed(own: str) -> set[str]:
    if own in GROUND:
        return set(GROUND[: GROUND.index(own)]) | {own}
    if own in SMALL:
        return {*GROUND, *SMALL}
    if own in DESK:
        return {*GROUND, *SMALL, *DESK[: DESK.index(own) + 1], *(JOB if own == "cli" else ())}
    if own in JOB:
        return {*GROUND, *JOB[: JOB.index(own) + 1]}
    if own in LAB_JOB:
        return {*GROUND, *JOB, *LAB_JOB[: LAB_JOB.index(own) + 1]}
    if own in LAB_DESK:
        both = (*JOB, *LAB_JOB) if own in OVER_BOTH else ()
        return {*GROUND, *SMALL, *DESK, *LAB_DESK[: LAB_DESK.index(own) + 1], *both}
    by_name = {"lab": {"lab.cli"}, ALIASES: set(LAB_JOB)}
    return by_name.get(own, {*GROUND, *SMALL, *DESK, *JOB})  # the package itself and its __main__


@cache
def graph() -> dict[str, set[str]]:
    return {name: dependencies(name) for name in MODULES if name != "stepscope"}


def circles(arrows: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return circles of a graph, each as a path that ends where it began."""
    left = {node: set(to) for node, to in arrows.items()}
    found = []
    while True:
        try:
            tuple(TopologicalSorter(left).static_order())
        except CycleError as error:
            circle = error.args[1]
            found.append(circle)
            left[circle[1]].discard(circle[0])
            left[circle[0]].discard(circle[1])
            continue
        return found


def test_guard_sees_imports_by_name_and_circles() -> None:
    by_name = ast.parse('import_module("stepscope.report.html.page"); f("stepscope.lab.bench.rank:main")')
    assert names_used(ast.walk(by_name)) == {"stepscope.report.html.page", "stepscope.lab.bench.rank"}
    assert "report" not in allowed("run") and "record" not in allowed("run") and "run" not in allowed("record")
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}}) and not circles({"a": {"b", "c"}, "b": {"c"}, "c": set()})


@pytest.mark.slow
def test_imports_flow_downwards() -> None:
    upwards = [f"{a} -> {b}" for a, to in graph().items() for b in sorted(to) if room(b) not in allowed(room(a))]
    assert not upwards, "\n".join(upwards)


@pytest.mark.slow
def test_profiler_knows_nothing_of_the_laboratory() -> None:
    """Nor of the lazy names of the package as a whole, which lead there."""
    profiler = [name for name in MODULES if room(name).partition(".")[0] not in ("__init__", "lab", ALIASES)]
    found = {(name, used) for name in profiler for used in used_by(name) if leads_to_the_laboratory(used)}
    assert len(profiler) > 200 and not found, found
    for used in ("stepscope", "stepscope.DDPProfiler", "stepscope.lab", "stepscope.lab.bench.rank", "stepscope.bench"):
        assert leads_to_the_laboratory(used)


def leads_to_the_laboratory(used: str) -> bool:
    first, _, rest = used.partition(".")
    top = rest.partition(".")[0]
    return first == "stepscope" and (top in ("", "lab", ALIASES) or f"{first}.{top}" not in MODULES)


@pytest.mark.slow
def test_no_file_reaches_itself() -> None:
    assert not circles(graph())


@pytest.mark.slow
def test_each_side_keeps_to_its_libraries() -> None:
    for name in MODULES:
        top = {used.split(".")[0] for used in used_by(name)}
        if room(name) in (*JOB, *LAB_JOB, *GROUND, "__init__"):
            assert not top & TABLE_LIBRARIES, name
        if room(name) not in (*JOB, *LAB_JOB):
            assert "torch" not in top, name
        if room(name) == "contract":
            assert top <= {*sys.stdlib_module_names, "stepscope"}, name


@pytest.mark.parametrize("names", ["stepscope", "stepscope.cli.report", "stepscope.cli.main"])
def test_desk_side_imports_no_torch(names: str) -> None:
    code = f"import sys, {names}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_import_of_the_package_loads_no_table_library() -> None:
    code = "import sys, stepscope; sys.exit(bool({'numpy', 'wasmtime'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
