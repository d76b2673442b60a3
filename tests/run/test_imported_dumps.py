"""Logs, dumps and snapshots are told by content and used."""

import gzip
import json
import pickle
import shutil
from pathlib import Path

import pytest
from tests.run.together import Job

from stepscope.cli.main import main
from stepscope.contract.run_folder import rank_file
from stepscope.run.formats import format_of
from stepscope.run.load import load
from stepscope.run.side_files import side_files

DATA = Path(__file__).parents[1] / "data"
LOGS = DATA / "nccl_logs"


def measured(rank: int, size: int, time_us: int) -> dict:
    perf = {"coll": "AllReduce", "coll_sn": 7, "coll_msg_size_bytes": size, "coll_exec_time_us": time_us}
    return {
        "header": {"id": "0x7f8c", "rank": rank, "n_ranks": 2, "nnodes": 1},
        "metadata": {"inspector_output_format_version": "v4.0"},
        "coll_perf": {**perf, "coll_algobw_gbs": size / time_us / 1e3, "coll_busbw_gbs": size / time_us / 1e3},
    }


def inspector_file(path: Path, rank: int) -> Path:
    lines = [measured(rank, 4_000_000, 1000), measured(rank, 4_000_000, 3000)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_formats_are_told_by_content(tmp_path: Path) -> None:
    names = {
        "flight": DATA / "flight_recorder" / "nccl_trace_rank_0.gz",
        "memory": DATA / "memory_snapshot" / "snapshot.pickle.gz",
        "nccl-log": LOGS / "nccl_vm_1059.log",
        "nccl-inspector": inspector_file(tmp_path / "anything", 0),
    }
    for expected, path in names.items():
        other = tmp_path / f"x{expected}"
        shutil.copy(path, other)
        found = format_of(other)
        assert found is not None and found.id == expected
    assert format_of(DATA / "gloo-mesh" / "rank00000.flight_recorder.jsonl").id == "flight"  # type: ignore[union-attr]


@pytest.mark.slow
def test_imported_files_are_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run := tmp_path / "run").mkdir()
    Job(ranks=2, steps=3).run(run)
    (packed := tmp_path / "nccl.log.gz").write_bytes(gzip.compress((LOGS / "nccl_vm_1060.log").read_bytes()))
    files = [
        DATA / "flight_recorder" / "nccl_trace_rank_1.gz",
        inspector_file(tmp_path / "nccl-inspector-1.log", 1),
        packed,
    ]
    assert main(["import", *map(str, files), "--into", str(run)]) == 0
    assert (
        main(["import", str(DATA / "memory_snapshot" / "snapshot.pickle.gz"), "--into", str(run), "--rank", "1"]) == 0
    )
    for ending in ("flight_recorder.dump", "nccl.log", "nccl_inspector.jsonl", "memory.pickle"):
        assert (run / rank_file(1, ending)).is_file(), ending
    capsys.readouterr()
    assert main(["memory", str(run), "--no-cache", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["snapshots"][0]["rank"] == 1
    assert main(["hang", str(run), "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["ranks"] == [1]
    beside = side_files(run)
    assert [(log.rank, log.version) for log in beside.nccl] == [(1, "2.28.9+cuda13.0")]
    (live,) = beside.collectives
    assert (live.rank, live.op, live.count, live.size_bytes, live.time_ns) == (1, "all_reduce", 2, 8_000_000, 4_000_000)
    assert live.algbw_gb_per_s == 2.0 and live.busbw_gb_per_s == 2.0 and live.best_busbw_gb_per_s == 4.0


def test_gloo_collectives_have_their_group_by_an_imported_dump(tmp_path: Path) -> None:
    """The recorder's own lines as the pickle that torch would have written."""
    recorded = DATA / "gloo-mesh"
    for path in recorded.glob("*.json.gz"):
        shutil.copy(path, tmp_path)
    for rank in range(4):
        header, *entries = map(
            json.loads, (recorded / rank_file(rank, "flight_recorder.jsonl")).read_text().splitlines()
        )
        config = {g["name"]: {**g, "ranks": str(g["ranks"])} for g in header["process_groups"]}
        dump = tmp_path / rank_file(rank, "flight_recorder.dump")
        dump.write_bytes(pickle.dumps({"version": "2.10", "pg_config": config, "entries": entries}, 2))

    def groups(folder: Path) -> list[list[tuple[str, int]]]:
        all_ranks = [rank.collectives for rank in load(folder, cache=False).ranks]
        return [[(c.groups[g].desc, int(n)) for g, n in zip(c.group, c.full_bytes, strict=True)] for c in all_ranks]

    assert groups(tmp_path) == groups(recorded)


@pytest.mark.slow
def test_files_of_any_name_in_a_run_folder_are_picked_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Job(ranks=2, steps=3).run(tmp_path)
    shutil.copy(LOGS / "nccl_vm_1060.log", tmp_path / "stderr_of_node7.txt")
    shutil.copy(DATA / "memory_snapshot" / "snapshot.pickle.gz", tmp_path / "before_oom")
    shutil.copy(DATA / "flight_recorder" / "nccl_trace_rank_1.gz", tmp_path / "comm_lib_1")
    assert [log.rank for log in side_files(tmp_path).nccl] == [1]
    assert main(["memory", str(tmp_path), "--no-cache", "--json", "-"]) == 0
    assert [s["path"] for s in json.loads(capsys.readouterr().out)["snapshots"]] == ["before_oom"]
    assert main(["hang", str(tmp_path), "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["ranks"] == [1]
