"""`stepscope import`: files of other tools find their place in a run, and nothing is lost or half written."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from tests.analyze.build import RankTrace
from tests.trace.nsight.kineto_as_nsys import write_nsys

from stepscope.cli.main import main
from stepscope.errors import StepscopeError
from stepscope.run.load import load

NCU = Path(__file__).parents[1] / "data" / "ncu-h200" / "wide.csv"


def trace(rank: int, *, world_size: int = 2) -> RankTrace:
    made = RankTrace(rank, world_size=world_size)
    for step in range(3):
        made.step(step, 1000 * step, 1000 * step + 990)
        made.kernel("gemm", at=1000 * step + 10, start=1000 * step + 20, end=1000 * step + 500)
    return made


def export(folder: Path, *ranks: int, name: str = "profile.sqlite", blobs: bool = True) -> Path:
    return write_nsys(folder / name, [trace(rank).document() for rank in ranks], blobs=blobs)


def run_of(folder: Path, *ranks: int) -> Path:
    (run := folder / "run").mkdir()
    for rank in ranks:
        trace(rank).write(run)
    return run


def fake_tool(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, body: str) -> None:
    """Put a program of that name on PATH."""
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    (tools / name).write_text(f"#!{sys.executable}\nimport shutil, sys\n{body}\n")
    (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tools))


def test_export_becomes_a_run_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "new"
    assert main(["import", str(export(tmp_path, 0, 1)), "--into", str(run)]) == 0
    said = capsys.readouterr()
    assert "profile.nsys.sqlite  Nsight Systems export: 6 kernels of 2 processes" in said.out
    assert [r.rank for r in load(run, cache=False).ranks] == [0, 1]
    assert main(["report", str(run), "--json", str(tmp_path / "r.json")]) == 0
    report = json.loads((tmp_path / "r.json").read_text())
    assert [r["num_steps"] for r in report["ranks"]] == [3, 3]


def test_other_file_in_the_same_place_needs_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "new"
    main(["import", str(export(tmp_path, 1)), "--into", str(run)])
    other = write_nsys(tmp_path / "other.sqlite", [{**trace(1).document(), "baseTimeNanoseconds": 5}])
    before = (run / "rank00001.nsys.sqlite").read_bytes()
    assert main(["import", str(other), "--into", str(run)]) == 2
    assert "already exists; use --force" in capsys.readouterr().err
    assert (run / "rank00001.nsys.sqlite").read_bytes() == before
    assert main(["import", str(other), "--into", str(run), "--force"]) == 0
    assert (run / "rank00001.nsys.sqlite").read_bytes() == other.read_bytes()


@pytest.mark.parametrize("content", [b"", b"hello\n", b"SQLite format 3\0" + bytes(200), b"{}", b"\x1f\x8bxx"])
def test_foreign_files_are_refused_in_one_line(tmp_path, capsys, content):
    (path := tmp_path / "x.bin").write_bytes(content)
    assert main(["import", str(path), "--into", str(tmp_path / "new")]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_kineto_trace_without_a_rank_needs_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.json"
    document = trace(0).document()
    del document["distributedInfo"]
    path.write_text(json.dumps(document))
    assert main(["import", str(path), "--into", str(tmp_path / "new")]) == 2
    assert "give --rank" in capsys.readouterr().err
    assert main(["import", str(path), "--into", str(tmp_path / "new"), "--rank", "3"]) == 0
    assert [r.rank for r in load(tmp_path / "new", cache=False).ranks] == [3]


def test_folder_of_files_is_imported(tmp_path: Path) -> None:
    (logs := tmp_path / "logs").mkdir()
    shutil.copy(NCU, logs / "metrics_rank_0.csv")
    export(logs, 1)
    (logs / "notes.txt").write_text("nothing")
    assert main(["import", str(logs), "--into", str(tmp_path / "new")]) == 0
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == ["rank00000.ncu.csv", "rank00001.nsys.sqlite"]


def test_second_recording_of_a_rank_is_held_against_the_first(tmp_path: Path) -> None:
    run = run_of(tmp_path, 0, 1)
    main(["import", str(export(tmp_path, 1)), "--into", str(run)])
    loaded = load(run, cache=False)
    assert [r.trace.path.endswith(".json.gz") for r in loaded.ranks] == [True, True]
    (line,) = [w for w in loaded.warnings if "Nsight Systems" in w]
    assert "rank 1" in line and "agree where both record (3 and 3 kernels" in line


def test_report_goes_through_nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = export(tmp_path, 1)
    fake_tool(
        tmp_path, monkeypatch, "nsys",
        "out = next(a for a in sys.argv if a.startswith('--output='))[9:]\n"
        f"assert sys.argv[1] == 'export' and '--type=sqlite' in sys.argv\nshutil.copy({str(made)!r}, out)",
    )  # fmt: skip
    (report := tmp_path / "rank1.nsys-rep").write_bytes(b"report")
    assert main(["import", str(report), "--into", str(tmp_path / "new")]) == 0
    assert (tmp_path / "new" / "rank00001.nsys.sqlite").read_bytes() == made.read_bytes()
    (alone := tmp_path / "alone").mkdir()
    shutil.copy(report, alone)
    assert [r.rank for r in load(alone).ranks] == [1]
    monkeypatch.setenv("PATH", "")
    assert [r.rank for r in load(alone).ranks] == [1], "the export is kept"
    (cached,) = (alone / ".stepscope").glob("*.sqlite")
    assert cached.stat().st_mode & 0o777 == 0o600
    cached.chmod(0o666)
    with pytest.raises(StepscopeError, match="nsys is not on PATH"):  # another user may have changed it
        load(alone)


@pytest.mark.parametrize("body", ["sys.exit('no such\\nreport')", "pass", "print('garbage')"])
def test_tool_that_fails_leaves_nothing(tmp_path, monkeypatch, capsys, body):
    for name in ("nsys", "ncu"):
        fake_tool(tmp_path, monkeypatch, name, body)
        (tmp_path / f"rank0.{name}-rep").write_bytes(b"report")
        assert main(["import", str(tmp_path / f"rank0.{name}-rep"), "--into", str(tmp_path / "new")]) == 2
        assert capsys.readouterr().err.count("\n") == 1
        assert not list((tmp_path / "new").iterdir())


DATA = Path(__file__).parents[1] / "data"
BARE_LOG = """NCCL INFO === System : maxBw 48.0 totalBw 96.0 ===
NCCL INFO Channel 00/02 : 0 1 2 3
NCCL INFO Channel 01/02 : 0 1 2 3
NCCL INFO Using algorithm Ring, protocol Simple
NCCL INFO AllReduce: opCount 5 sendbuff 0x1 recvbuff 0x2 count 1048576 datatype 7 op 0 root 0 comm 0x3 [nranks=4]
NCCL INFO AllReduce: opCount 42 bytes 104857600 datatype 7 op 0
NCCL INFO Broadcast: opCount 6
"""


def reported(run: Path, capsys: pytest.CaptureFixture[str]) -> tuple[str, dict, str]:
    """Return the report of a run as text, as JSON and as a page's text in words."""
    capsys.readouterr()
    assert main(["report", str(run), "--json", f"{run}.json", "--html", f"{run}.html"]) == 0
    return capsys.readouterr().out, json.loads(Path(f"{run}.json").read_text()), Path(f"{run}.html").read_text()


@pytest.mark.slow
def test_flight_recorder_dumps_alone_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "dumps"
    assert main(["import", str(DATA / "flight_recorder"), "--into", str(run)]) == 0
    text, report, page = reported(run, capsys)
    assert report["hang"]["conclusions"] and report["verdict_reason"] == report["hang"]["conclusions"][0]
    assert report["recorded_calls"][0]["op"] in text and "Flight recorder" in text
    assert report["run"]["num_ranks"] == len(report["hang"]["ranks"]) and "Hang" in page


def test_nsight_compute_metrics_alone_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "metrics"
    assert main(["import", str(NCU), "--into", str(run)]) == 0
    text, report, page = reported(run, capsys)
    assert [k["count"] for k in report["kernels"]] == [2, 2, 2, 2] and "softmax_warp_forwar" in text
    assert page.startswith("<!doctype html>")


def test_bare_log_of_nccl_needs_a_rank_and_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bare.log").write_text(BARE_LOG)
    run = tmp_path / "run"
    assert main(["import", str(tmp_path / "bare.log"), "--into", str(run)]) == 2
    assert "give --rank" in capsys.readouterr().err
    assert main(["import", str(tmp_path / "bare.log"), "--into", str(run), "--rank", "0"]) == 0
    text, report, page = reported(run, capsys)
    (log,) = report["nccl"]
    assert (log["rank"], log["channels"], log["total_bw_gb_per_s"]) == (0, 2, 96.0)
    assert [(c["algorithm"], c["protocol"]) for c in log["choices"]] == [("RING", "SIMPLE")]
    sizes = {("all_reduce", 4 << 20), ("all_reduce", 100 << 20), ("broadcast", None)}
    assert {(c["op"], c["size_bytes"]) for c in log["collectives"]} == sizes
    assert (
        "algorithms: RING/SIMPLE" in text
        and re.search(r"all_reduce +4.2 MB +1", text)
        and page.startswith("<!doctype html>")
    )
