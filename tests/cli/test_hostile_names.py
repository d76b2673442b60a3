"""A run whose folder and kernels carry escape sequences and markup, through every command that prints names."""

from pathlib import Path

import pytest
from tests.analyze.simulate import SYNC, WAIT, collective, kernel, simulate
from tests.diagnose.late import late_run

from stepscope.cli.main import main

HOSTILE = "run\x1b[31m\x1b]52;c;AAAA\x07\u202e[red]:smile:[\\foo]\nforged"
STEP = [kernel(300), collective(500), kernel(200), WAIT, kernel(100), SYNC]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("jobs") / HOSTILE
    place.mkdir()
    for trace in simulate(STEP, STEP, steps=3).traces:
        trace.write(place)
    return place


CSV = "op,world_size,bytes,median_us\n" + "".join(f"all_reduce,2,{4**k},{10 + 4**k / 1000}\n" for k in range(3, 12))
COMMANDS = {
    "report": ["report", "RUN"],
    "health": ["health", "RUN"],
    "compare": ["compare", "RUN", "RUN"],
    "whatif": ["whatif", "RUN", "--set", "straggler=off"],
    "no such owners": ["code", "RUN"],
    "investigate": ["investigate", "RUN"],
    "history": ["history", "RUN", "--by", "config"],
    "no such step log": ["job", "RUN"],
    "export": ["export", "RUN", "--perfetto", "OUT", "--csv", "FOLDER", "--tables", "steps"],
    "sql": ["sql", "RUN", "select name, 'a\x1b[31m[red]' from events limit 3"],
    "predict scale": ["predict", "scale", "PARALLEL", "--world-size", "8", "--link", "50"],
    "predict collective": ["predict", "collective", "--calibration", "CALIBRATION", "--op", "all_reduce",
                           "--bytes", "1MB", "--world-size", "2"],
    "calibrate": ["calibrate", "--from-csv", "CSV", "--out", "OUT"],
    "no such run": ["report", "RUN/none"],
    "no such argument": ["report", "RUN", "--\x1b[31m[red]"],
    "no such command": ["\x1b[31m[red]"],
    "no such gate": ["compare", "RUN", "RUN", "--fail-on", "\x1b[31m[red]>1"],
}  # fmt: skip


@pytest.mark.parametrize("what", COMMANDS)
def test_no_name_steers_the_terminal(
    what: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if what == "sql":
        pytest.importorskip("duckdb")
    times = tmp_path / f"times{HOSTILE}.csv"
    times.write_text(CSV)
    places = {
        "RUN": folder,
        "RUN/none": folder / "none",
        "OUT": tmp_path / f"out{HOSTILE}",
        "FOLDER": tmp_path / f"folder{HOSTILE}",
        "CSV": times,
        "PARALLEL": tmp_path / f"parallel{HOSTILE}",
        "CALIBRATION": tmp_path / f"calibration{HOSTILE}.json",
    }
    late_run(places["PARALLEL"], late_us=0)
    if what == "predict collective":
        assert main(["calibrate", "--from-csv", str(times), "--out", str(places["CALIBRATION"])]) == 0
    words = [str(places.get(word, word)) for word in COMMANDS[what]]
    try:
        code = main(words)
    except SystemExit as ended:
        code = int(str(ended.code))
    assert code == (2 if what.startswith("no such") else 0)
    said = "".join(capsys.readouterr())
    assert said
    assert all(c.isprintable() or c == "\n" for c in said), [c for c in said if not c.isprintable() and c != "\n"]
    assert not any(line.startswith("forged") for line in said.splitlines())
