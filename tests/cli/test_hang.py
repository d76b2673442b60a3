"""`stepscope hang` and `stepscope memory`: dumps and snapshots as text and JSON; hostile ones are one line."""

import json
import pickle
from pathlib import Path

import pytest
from tests.analyze.hang.dumps import world
from tests.trace.pickles.test_plain_data import Canary

from stepscope.cli.main import main
from stepscope.trace.flight_recorder import read_flight_dump

RECORDED = Path(__file__).parents[1] / "data" / "flight_recorder"


def planted(folder: Path) -> None:
    for r in world():
        r.call("all_reduce", line=10)
        if r.rank != 2:
            r.call("all_reduce", line=12, state="started")
        r.write(folder)


@pytest.mark.slow
def test_recorded_dumps_are_read_exactly(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hang", str(RECORDED), "--json", "-"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["schema"] == 1 and said["hang"] is False and said["world_size"] == 4
    (group,) = said["groups"]
    assert group["ranks"] == [0, 1, 2, 3] and group["verdict"] == "finished"
    assert {r["seq"] for r in group["last_by_rank"]} == {666}
    assert (group["last_common"]["file"], group["last_common"]["line"]) == ("capture.py", 267)
    import gzip

    raw = pickle.loads(gzip.decompress((RECORDED / "nccl_trace_rank_1.gz").read_bytes()))
    dump = read_flight_dump(RECORDED / "nccl_trace_rank_1.gz")
    assert [(e.seq, e.named, e.created_ns, e.state) for e in dump.entries] == [
        (e["collective_seq_id"], e["profiling_name"], e["time_created_ns"], e["state"]) for e in raw["entries"]
    ]
    assert [[(f.file, f.line, f.function) for f in e.stack] for e in dump.entries] == [
        [(f["filename"], f["line"], f["name"]) for f in e["frames"]] for e in raw["entries"]
    ]
    assert [[list(s) for s in e.input_sizes] for e in dump.entries] == [e["input_sizes"] for e in raw["entries"]]


def test_missing_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planted(tmp_path)
    assert main(["hang", str(tmp_path), "--json", str(tmp_path / "hang.json")]) == 0
    said = json.loads((tmp_path / "hang.json").read_text())
    assert said["suspects"] == [2] and said["groups"][0]["missing"] == [2]
    assert {w["rank"]: w["line"] for w in said["groups"][0]["waiting"]} == {0: 12, 1: 12, 3: 12}


def test_unreadable_rank_is_named_and_the_rest_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planted(tmp_path)
    (tmp_path / "nccl_trace_rank_1").write_bytes(b"\x80\x02}q")
    assert main(["hang", str(tmp_path)]) == 3
    captured = capsys.readouterr()
    assert "nccl_trace_rank_1" in captured.err and "no dump of rank 1" in captured.out


def test_hostile_dump_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    canary, dump = tmp_path / "canary", tmp_path / "nccl_trace_rank_0"
    dump.write_bytes(pickle.dumps({"version": "2.10", "entries": [Canary(canary)]}, 4))
    assert main(["hang", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert not canary.exists() and captured.out == "" and captured.err.count("\n") == 1
    assert "more than plain data (STACK_GLOBAL" in captured.err


SNAPSHOT = Path(__file__).parents[1] / "data" / "memory_snapshot" / "snapshot.pickle.gz"


@pytest.mark.slow
def test_curves_of_a_snapshot_sum_to_its_timeline(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", str(SNAPSHOT), "--json", "-"]) == 0
    said = json.loads(capsys.readouterr().out)
    (one,) = said["snapshots"]
    assert said["schema"] == 1 and said["memory"] is None and one["peak"]["allocated_bytes"] == 463272960
    parts = one["peak"]["by_purpose"]
    assert sum(v or 0 for k, v in parts.items() if k != "reserved_unused") == one["peak"]["allocated_bytes"]
    assert {len(curve) for curve in one["by_purpose"].values() if curve} == {len(one["timeline"]["time_us"])}
    known = [curve for curve in one["by_purpose"].values() if curve]
    assert [sum(sizes) for sizes in zip(*known, strict=True)] == one["timeline"]["allocated_bytes"]


def test_hostile_snapshot_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    canary, path = tmp_path / "canary", tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": [Canary(canary)], "device_traces": []}))
    assert main(["memory", str(path)]) == 2
    captured = capsys.readouterr()
    assert not canary.exists() and captured.out == "" and captured.err.count("\n") == 1
