"""The script of `action.yml`: arguments, job summary, outputs and exit code, with a stand-in for `stepscope`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepscope.cli.main import command_parser

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "tools" / "gate_action.sh"
STEPSCOPE = """#!{python}
import json, os, sys
words = sys.argv[1:]
json.dump(words, open(os.environ["SEEN"], "w"))
code = int(os.environ["CODE"])
if code != 2:
    at = lambda name: words[words.index(name) + 1]
    json.dump({{"verdict": "regression" if code == 1 else "undecided"}}, open(at("--json"), "w"))
    open(at("--markdown"), "w").write("### Training step\\n")
    open(at("--bencher"), "w").write("{{}}")
sys.exit(code)
"""


def run_script(
    folder: Path, *, code: int, base: str = "HEAD"
) -> tuple[subprocess.CompletedProcess[str], dict[str, str]]:
    """Return how the script ended in a new repository, and the files that it wrote."""
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "base"]):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=folder, check=True)
    (bin_folder := folder / "bin").mkdir()
    (bin_folder / "stepscope").write_text(STEPSCOPE.format(python=sys.executable))
    (bin_folder / "stepscope").chmod(0o755)
    (bin_folder / "python").symlink_to(sys.executable)
    files = {name: folder / name for name in ("SEEN", "GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")}
    given = {"COMMAND": "python 'my train.py'; echo $((1+1))", "BASE": base, "THRESHOLD": "5", "FALSE_ALARMS": "1"}
    environment = {
        **os.environ,
        "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
        **{name: str(path) for name, path in files.items()},
        **{f"GATE_{name}": value for name, value in given.items()},
        "GATE_ROUNDS": "8",
        "RUNNER_TEMP": str(folder),
        "CODE": str(code),
    }
    done = subprocess.run(
        ["bash", str(SCRIPT)], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return done, {name: path.read_text() for name, path in files.items() if path.exists()}


@pytest.mark.parametrize(("code", "ends"), [(0, 0), (1, 1), (3, 0)])
def test_summary_outputs_and_exit_code(tmp_path: Path, code: int, ends: int) -> None:
    done, files = run_script(tmp_path, code=code)
    assert done.returncode == ends, done.stderr
    assert files["GITHUB_STEP_SUMMARY"] == "### Training step\n"
    outputs = dict(line.split("=", 1) for line in files["GITHUB_OUTPUT"].splitlines())
    assert outputs["verdict"] == ("regression" if code == 1 else "undecided")
    assert Path(outputs["json"]).is_file() and Path(outputs["bencher"]).is_file()
    assert ("::error::" in done.stdout) == (code == 1)
    words = json.loads(files["SEEN"])
    assert words[0] == "gate"
    assert words[words.index("--") + 1 :] == ["bash", "-c", "python 'my train.py'; echo $((1+1))"]
    taken = command_parser("gate").parse_args(words[1:])
    assert (taken.base, taken.threshold, taken.false_alarms, taken.rounds) == ("HEAD", 5.0, 1.0, 8)


def test_failures_name_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    done, files = run_script(tmp_path / "a", code=0, base="no-such-revision")
    assert done.returncode == 2 and "fetch-depth: 0" in done.stdout and "SEEN" not in files
    done, files = run_script(tmp_path / "b", code=2)
    assert done.returncode == 2 and "::error::" in done.stdout and "GITHUB_OUTPUT" not in files


def test_action_passes_its_inputs_as_variables() -> None:
    yaml = pytest.importorskip("yaml")
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    step = action["runs"]["steps"][-1]
    passed = {value for name, value in step["env"].items() if name.startswith("GATE_")}
    assert passed == {f"${{{{ inputs.{name} }}}}" for name in action["inputs"] if name != "working-directory"}
    assert all("${{" not in one["run"] for one in action["runs"]["steps"])
    assert SCRIPT.name in step["run"]
    script = SCRIPT.read_text()
    assert all(f"${name}" in script for name in step["env"] if name.startswith("GATE_"))
