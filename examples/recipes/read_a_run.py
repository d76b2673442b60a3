"""What can be asked of a run, without torch: report, checks, what-if, comparison, investigation, tables, timeline.

Run it:   python examples/recipes/read_a_run.py OUT RUN          RUN: a folder of traces, anybody's
"""

import sys
from pathlib import Path

import stepscope as library
from stepscope.cli.main import main as stepscope


def main(out: Path, run: str) -> None:
    for words in (
        ["report", run, "--json", str(out / "report.json"), "--html", str(out / "report.html")],
        ["health", run, "--guides", "--fail-on", "step_ms>100000"],
        ["whatif", run, "--set", "straggler=off"],
        ["compare", run, run, "--fail-on", "step_ms>5%"],
        ["investigate", run, "--out", str(out / "investigation.md")],
        ["export", run, "--perfetto", str(out / "timeline.json.gz"), "--csv", str(out / "csv"), "--tables", "steps"],
        ["export", run, "--tensorboard", str(out / "tensorboard")],
        ["calibrate", "--from-run", run, "--out", str(out / "calibration.json")],
        ["predict", "scale", run, "--world-size", "64", "--link", "50"],
    ):
        print("$ stepscope", *words)
        code = stepscope(words)
        assert code == 0, f"{words[0]}: exit code {code}"
    answer = library.load(run)
    for finding in answer.findings:
        print(f"{finding.id}: {finding.title}, saves {finding.saving_pct:.0f} %")
    assert (out / "timeline.json.gz").stat().st_size and (out / "report.html").stat().st_size


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
