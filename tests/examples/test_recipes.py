"""Every recipe of examples/recipes runs as its page says, on a CPU, with at most two ranks."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.examples.test_scripts import environment
from tests.limits import HANG_S

import stepscope
from stepscope.cli.main import COMMANDS

pytest.importorskip("torch")
ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "examples" / "recipes"
DATA = ROOT / "tests" / "data"
MORE = {
    "read_a_run": ["traces"],
    "files_of_other_tools": [
        "traces",
        str(DATA / "nccl_logs" / "nccl_vm_1059.log"),
        str(DATA / "flight_recorder"),
        str(DATA / "memory_snapshot" / "snapshot.pickle.gz"),
    ],
}
NAMES = sorted(path.stem for path in RECIPES.glob("*.py"))
PAGE = (ROOT / "docs" / "recipes.md").read_text()


@pytest.mark.job
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_recipe_runs(name: str, tmp_path: Path) -> None:
    shutil.copytree(DATA / "gloo-ddp", tmp_path / "traces")
    (tmp_path / "out").mkdir()
    command = [sys.executable, "-W", "ignore", str(RECIPES / f"{name}.py"), "out", *MORE.get(name, [])]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode == 0, f"{done.stdout[-1500:]}\n{done.stderr[-3000:]}"


def test_every_recipe_is_on_the_page() -> None:
    linked = set(re.findall(r"\(\.\./examples/([\w./-]+)\)", PAGE))
    assert {f"recipes/{name}.py" for name in NAMES} <= linked
    assert [name for name in linked if not (ROOT / "examples" / name).exists()] == []


def test_every_command_on_the_page_is_one() -> None:
    words = set(re.findall(r"`stepscope (\w+)", PAGE))
    assert len(words) > 15 and words <= set(COMMANDS)
    assert all(hasattr(stepscope, name) for name in re.findall(r"`stepscope\.(\w+)", PAGE))
