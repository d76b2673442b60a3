"""Ranks under nsys and ncu, with executables of that name that note their command line and run what is under them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.limits import HANG_S

from stepscope.run.load import load

TOOL = """#!{python} -S
import json, os, subprocess, sys
if "--import" in sys.argv:
    sys.stdout.write(open({table!r}).read())
    sys.exit(0)
if sys.argv[1] == "export":
    import gzip
    out = next(word.partition("=")[2] for word in sys.argv if word.startswith("--output="))
    with open(out, "wb") as f:
        f.write(gzip.open({export!r}).read())
    sys.exit(0 if sys.argv[-1].endswith(".nsys-rep") else 1)
options = [word for word in sys.argv[1:] if word.startswith("--") or word == "profile"]
command = sys.argv[1 + len(options):]
out = next(word.partition("=")[2] for word in options if word.startswith(("--output=", "--export=")))
with open(out + ".{ending}", "w") as f:
    json.dump({{"options": options, "command": command, "rank": os.environ.get("RANK")}}, f)
sys.exit(subprocess.run(command).returncode)
"""
DATA = Path(__file__).parents[2] / "data"
TABLE, EXPORT = DATA / "ncu-h200" / "wide.csv", DATA / "nsys-small" / "export.sqlite.gz"
SCRIPT = "import os; print('rank', os.environ.get('RANK', 'alone'), flush=True); raise SystemExit(3)"


@pytest.fixture
def tools(tmp_path: Path) -> dict[str, str]:
    """Environment with both tools on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, ending in (("nsys", "nsys-rep"), ("ncu", "ncu-rep")):
        (folder / name).write_text(
            TOOL.format(python=sys.executable, ending=ending, table=str(TABLE), export=str(EXPORT))
        )
        (folder / name).chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


def record(*words: str, cwd: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stepscope.cli.main", "record", *words]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=HANG_S)


@pytest.mark.job
def test_one_process_runs_under_nsys_with_our_window_as_its_range(tmp_path: Path, tools: dict[str, str]) -> None:
    done = record("--nsys", "--out", "run", "--", sys.executable, "-c", SCRIPT, cwd=tmp_path, env=tools)
    assert (done.returncode, done.stdout) == (3, "rank alone\n")
    noted = json.loads((tmp_path / "run" / "rank00000.nsys-rep").read_text())
    assert noted["command"] == [sys.executable, "-c", SCRIPT]
    assert {
        "--trace=cuda,nvtx,osrt,cudnn,cublas",
        "--sample=process-tree",
        "--cuda-memory-usage=true",
        "--capture-range=cudaProfilerApi",
        "--capture-range-end=stop",
        "--duration=120",
        "--kill=none",
        "--force-overwrite=true",
    } < set(noted["options"])
    assert "nsys wrote run/rank00000.nsys-rep, run/rank00000.nsys.sqlite" in done.stderr
    # read on a machine without the tool
    assert load(tmp_path / "run", cache=False).ranks[0].has_device
    assert not list(tmp_path.glob(".run*"))


@pytest.mark.job
def test_a_missing_tool_is_said_and_the_job_runs(tmp_path: Path) -> None:
    bare = {**os.environ, "PATH": str(tmp_path)}
    done = record("--nsys", "--", sys.executable, "-c", SCRIPT, cwd=tmp_path, env=bare)
    assert (done.returncode, done.stdout) == (3, "rank alone\n")
    assert "nsys is not installed (Nsight Systems: not found on PATH); the job is recorded by torch's" in done.stderr
