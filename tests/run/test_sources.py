"""The files of a run are found wherever they are given, in the folders of other tools too; each knows its rank."""

import gzip
import json
from pathlib import Path

import pytest
from tests.analyze.build import RankTrace

from stepscope.errors import InputError
from stepscope.run.load import load
from stepscope.run.sources import assign_ranks, find_sources, rank_in_name, runs_in


def names(found: list[str] | str | Path) -> list[str]:
    return [s.path.name for s in find_sources(found).files]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("rank00000.pt.trace.json.gz", "rank00001.pt.trace.json.gz", "rank00001.groups.json", "run.json"):
        (tmp_path / name).write_text("x")
    for name in ("rank00000.steps.jsonl", "notes.txt", ".hidden.json", "calibration.json", "report.json", "other.json"):
        (tmp_path / name).write_text("x")
    (tmp_path / ".stepscope").mkdir()
    (tmp_path / ".stepscope" / "rank00000.json").write_text("x")
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "rank00002.json").write_text("x")
    return tmp_path


def test_folder_gives_its_traces_and_nothing_else(folder: Path) -> None:
    found = find_sources(folder)
    assert [(s.path.name, s.claimed) for s in found.files] == [
        ("other.json", False),
        ("rank00000.pt.trace.json.gz", True),
        ("rank00001.pt.trace.json.gz", True),
    ]
    assert found.folder == folder


def test_file_glob_and_list(folder: Path) -> None:
    first, second = folder / "rank00000.pt.trace.json.gz", folder / "rank00001.pt.trace.json.gz"
    assert names(str(first)) == [first.name]
    assert names(str(folder / "rank*.trace.json.gz")) == [first.name, second.name]
    assert names([str(second), str(first)]) == [second.name, first.name]
    assert find_sources([first, second]).folder is None
    assert names(str(folder / "r*.json")) == ["rank00001.groups.json"], "a glob means what it says, less run.json"


def test_file_given_twice_counts_once_and_is_named(folder: Path) -> None:
    path = folder / "rank00000.pt.trace.json.gz"
    link = folder / "latest.json"
    link.symlink_to(path)
    found = find_sources([path, path, link])
    assert [s.path for s in found.files] == [path]
    assert found.repeated == (
        f"{path.name} and {path.name} are the same file; it counts once",
        f"{path.name} and latest.json are the same file; it counts once",
    )


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank00012.pt.trace.json.gz", 12),
        ("worker3_step_12.1694128201545.pt.trace.json.gz", 3),
        ("ddp_rank_2_trace.json", 2),
        ("sampled_rank-1.json.gz", 1),
        ("host_Rank7.json", 7),
        ("exp_r5_rank3.json", 3),
        ("trace.json", None),
        ("run2.json", None),
        ("rank99999999999999999999.json", None),
    ],
)
def test_rank_in_a_file_name(name: str, rank: int | None) -> None:
    assert rank_in_name(name) == rank


def test_header_goes_before_name_and_name_before_order() -> None:
    named = [("rank5.json", 2), ("rank0.json", None), ("b.json", None), ("a.json", None)]
    assert assign_ranks(named) == [(2, "distributedInfo"), (0, "file name"), (1, "order"), (3, "order")]


def test_letters_that_may_mean_a_rank_are_believed_where_they_tell_files_apart() -> None:
    assert assign_ranks([("gpt_r1.json", None), ("gpt_r0.json", None)]) == [(1, "file name"), (0, "file name")]
    assert assign_ranks([("gpt-r2-a.json", None), ("gpt-r2-b.json", None)]) == [(0, "order"), (1, "order")]


def test_folder_of_runs_is_named_with_the_runs_in_it(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "rank0.json").write_text("{}")
    with pytest.raises(InputError, match=f"give one of {tmp_path / 'first'}"):
        find_sources(tmp_path)


def write(path: Path, rank: int, *, header: bool = False) -> None:
    """Write a trace of a rank; without `header` it does not say which rank that is."""
    trace = RankTrace(rank, world_size=4)
    trace.step(0, 0, 1000)
    trace.kernel("gemm", at=10, start=20 + rank, end=90)
    document = trace.document()
    if not header:
        del document["distributedInfo"]
    path.parent.mkdir(parents=True, exist_ok=True)
    data = json.dumps(document).encode()
    path.write_bytes(gzip.compress(data) if path.name.endswith(".gz") else data)


def starts(folder: Path | list[Path] | str) -> list[tuple[int, str, int]]:
    """Return rank, how it is known, and which trace it is."""
    run = load(folder, cache=False)
    return [(r.rank, r.rank_source, int(r.work.start_ns[0] % 1_000_000) // 1000 - 20) for r in run.ranks]


@pytest.mark.parametrize("named", ["rank_{}", "rank{}", "rank-{}", "worker{}", "node0_rank{}", "Rank {}"])
def test_folder_per_rank(tmp_path: Path, named: str) -> None:
    for rank in (0, 2, 10):
        write(tmp_path / named.format(rank) / "trace.json", rank)
    assert starts(tmp_path) == [(rank, "file name", rank) for rank in (0, 2, 10)]


def test_traces_deeper_in_the_folder_of_a_rank(tmp_path: Path) -> None:
    for rank in range(2):
        write(tmp_path / f"rank_{rank}" / "profile" / "step_10" / "host_123.456.pt.trace.json.gz", rank)
    assert starts(tmp_path) == [(0, "file name", 0), (1, "file name", 1)]


def test_glob_and_list_of_rank_folders(tmp_path: Path) -> None:
    for rank in range(2):
        write(tmp_path / f"rank_{rank}" / "trace.json", rank)
    expected = [(0, "file name", 0), (1, "file name", 1)]
    assert starts(f"{tmp_path}/rank_*") == expected
    assert starts([tmp_path / "rank_1", tmp_path / "rank_0"]) == expected


def test_folders_of_ranks_are_one_run_not_a_set_of_runs(tmp_path: Path) -> None:
    for rank in range(2):
        write(tmp_path / f"rank_{rank}" / "trace.json", rank)
    assert runs_in(str(tmp_path)) == [tmp_path]
