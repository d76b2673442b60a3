"""Imports flow one way, and the two sides never meet."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "src" / "stepscope"
DESK = ["trace", "run", "cost", "analyze", "predict", "diagnose", "report", "cli"]  # lowest first
JOB = ["record", "bench", "integrations"]
GROUND = {"errors", "event_records", "run_folder", "side_file", "units"}  # standard library only: for both sides
SMALL = GROUND | {"intervals", "stats", "stats_bootstrap", "student_t"}
TABLE_LIBRARIES = {"numpy", "wasmtime", "zlib_ng", "zstandard", "rich", "pyarrow", "duckdb"}
MODULES = sorted(ROOT.rglob("*.py"))


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
            if node.module == "stepscope":
                found |= {f"stepscope.{alias.name}" for alias in node.names}
    return found


def rooms_of(names: set[str]) -> set[str]:
    return {name.split(".")[1] for name in names if name.startswith("stepscope.")} - {"__version__"}


def room(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    return parts[0] if len(parts) > 1 else path.stem


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_flow_downwards(path: Path) -> None:
    own, used = room(path), rooms_of(imports(path)) - {room(path)}
    if own in DESK:
        allowed = SMALL | set(DESK[: DESK.index(own)]) | (set(JOB) if own == "cli" else set())
    elif own in JOB:
        allowed = GROUND | set(JOB[: JOB.index(own)])
    else:
        allowed = set(DESK) | set(JOB) | SMALL if own in ("__init__", "__main__") else SMALL
    assert used <= allowed, f"{path.name} in {own} imports {sorted(used - allowed)}"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_each_side_keeps_to_its_libraries(path: Path) -> None:
    top = {name.split(".")[0] for name in imports(path)}
    if room(path) in JOB or room(path) in GROUND or room(path) == "__init__":
        assert not top & TABLE_LIBRARIES
    if room(path) not in JOB:
        assert "torch" not in top


def test_every_room_has_a_map() -> None:
    for name in DESK + JOB:
        docstring = ast.get_docstring(ast.parse((ROOT / name / "__init__.py").read_text()))
        assert docstring and len(docstring) > 80, name


@pytest.mark.parametrize("names", ["stepscope", "stepscope.cli.report", "stepscope.cli.main"])
def test_desk_side_imports_no_torch(names: str) -> None:
    code = f"import sys, {names}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_import_of_the_package_loads_no_table_library() -> None:
    code = "import sys, stepscope; sys.exit(bool({'numpy', 'rich', 'wasmtime'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
