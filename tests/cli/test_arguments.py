"""Arguments that no number or name can be: one line and exit code 2, on every command."""

import json
import os

import pytest

from stepscope.cli.main import COMMANDS, main
from stepscope.side_file import why_no_file

MODEL = ["--layers", "2", "--d-model", "64", "--heads", "4", "--vocab", "100", "--seq-len", "8"]
LONG = "9" * 5000


def code_of(words: list[str]) -> int:
    try:
        return main(words)
    except SystemExit as ended:
        assert isinstance(ended.code, int)
        return ended.code


ODD = [
    ["export", "RUN", "--perfetto", "OUT", "--ranks", "\u00b2"],
    ["export", "RUN", "--perfetto", "OUT", "--max-slices", "\u00b2"],
    ["export", "RUN", "--perfetto", "OUT", "--min-us", "1e400"],
    ["record", "--launches", "-1", "--", "true"],
    ["view", "RUN", "--port", "\u00b2"],
    ["report", "RUN", "--jobs", "\u00b2"],
    ["report", "RUN", "--jobs", "0"],
    ["report", "RUN", "--unprofiled-step-ms", "1e400"],
    ["report", "RUN", "--peak-tflops", "nan"],
    ["report", "x" * 300],
    ["report", "RUN/" + "y" * 300],
    ["report", "RUN", "--html", "/proc/1/report.html"],
    ["report", "RUN", "--hardware", "x" * 300],
    ["report", "RUN", "--calibration", "x" * 300, "--html", "OUT"],
    ["report", "RUN", "--cache-folder", "x" * 300, "--hardware", "none"],
    ["compare", "RUN", "x" * 300],
    ["compare", "RUN", "RUN", "--fail-on", "findings.\u00b2>1"],
    ["health", "RUN", "--fail-on", f"ranks.{LONG}.wait_ms>1"],
    ["whatif", "RUN", "--set", "network=1e400x"],
    ["calibrate", "--from-csv", "x" * 300, "--out", "OUT"],
    ["predict", "collective", "--op", "all_reduce", "--bytes", "1e30", "--world-size", "8", "--link", "50"],
    ["predict", "collective", "--op", "all_reduce", "--bytes", "1MB", "--world-size", LONG, "--link", "50"],
    ["predict", "collective", "--op", "all_reduce", "--bytes", "1MB", "--world-size", "8", "--link", "1e-400"],
    ["predict", "flops", *MODEL, "--dense-layers", "\u00b2"],
    ["bench", "ddp", "--world-size", "\u00b2"],
    ["bench", "buckets", "--sizes-mb", "nan"],
    ["bench", "straggler", "--delays-ms", "0,nan"],
    ["bench", "scaling", "--world-sizes", LONG],
    ["demo", "--ranks", "\u00b2"],
    ["investigate", "RUN", "--json", "RUN"],
    ["sql", "RUN", "select 1", "--csv", "/dev/null", "--force"],
]  # fmt: skip


@pytest.mark.parametrize("words", ODD, ids=lambda words: " ".join(words)[:60])
def test_odd_arguments_are_one_line(words, folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {"RUN": str(folder), "OUT": str(tmp_path / "out")}
    given = [word.replace("RUN", names["RUN"]) if word.startswith("RUN") else names.get(word, word) for word in words]
    assert code_of(given) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1 and len(said.err) < 2300, said.err
    assert "stepscope failed" not in said.err
    assert os.listdir(tmp_path) == []
    assert "a device" in str(why_no_file("/dev/null"))


@pytest.mark.parametrize("name", COMMANDS)
def test_dashes_are_no_value_of_any_option(name, capsys):
    assert code_of([name, "--out=--", "run"]) == 2
    assert "argument --out: '--' is not a value" in capsys.readouterr().err


EXTREME = ["--peak-tflops", "1e-320", "--flops-per-step", "1e308", "--tokens-per-step", "1e308"]


def test_report_holds_no_infinity(folder, tmp_path, capsys):
    for extra in (EXTREME, ["--unprofiled-step-ms", "1e-320"], ["--unprofiled-step-ms", "1e308"]):
        assert main(["report", str(folder), "--json", str(tmp_path / "r"), *extra, "--force", "--no-cache"]) in (0, 2)
        if (tmp_path / "r").exists():
            json.loads((tmp_path / "r").read_text(), parse_constant=lambda name: pytest.fail(name))
        assert capsys.readouterr().err.count("\n") <= 1
