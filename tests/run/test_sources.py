"""Files into a run: found wherever they are given, ranks known, missing, doubled or unreadable; all lost is said."""

import gzip
import json
import shutil
from pathlib import Path

import pytest
from tests.analyze.build import RankTrace

from stepscope.contract.run_folder import trace_file
from stepscope.errors import InputError
from stepscope.run.load import load
from stepscope.run.sources import assign_ranks, find_sources, rank_in_name


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
    (link := folder / "latest.json").symlink_to(path)
    found = find_sources([path, path, link])
    assert [s.path for s in found.files] == [path]
    assert found.repeated == (
        f"{path.name} and {path.name} are the same file; it counts once",
        f"{path.name} and latest.json are the same file; it counts once",
    )


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank00012.pt.trace.json.gz", 12), ("worker3_step_12.1694128201545.pt.trace.json.gz", 3),
        ("ddp_rank_2_trace.json", 2), ("sampled_rank-1.json.gz", 1), ("host_Rank7.json", 7), ("exp_r5_rank3.json", 3),
        ("trace.json", None), ("run2.json", None), ("rank99999999999999999999.json", None),
    ],
)  # fmt: skip
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


def test_glob_and_list_of_rank_folders(tmp_path: Path) -> None:
    for rank in range(2):
        write(tmp_path / f"rank_{rank}" / "trace.json", rank)
    expected = [(0, "file name", 0), (1, "file name", 1)]
    assert starts(f"{tmp_path}/rank_*") == expected
    assert starts([tmp_path / "rank_1", tmp_path / "rank_0"]) == expected


def small(rank: int, *, world_size: int = 4, shift: float = 0) -> RankTrace:
    trace = RankTrace(rank, world_size=world_size)
    trace.step(0, 0, 1000)
    trace.kernel("gemm", at=10, start=20 + shift, end=90)
    return trace


def test_ranks_come_in_their_order_with_how_they_are_known(tmp_path: Path) -> None:
    for rank in (2, 0, 1, 3):
        small(rank).write(tmp_path)
    run = load(tmp_path, cache=False)
    assert [(r.rank, r.rank_source) for r in run.ranks] == [(r, "distributedInfo") for r in range(4)]
    assert (run.name, run.world_size, run.unreadable, run.warnings) == (tmp_path.name, 4, (), ())


def test_missing_ranks_are_named(tmp_path: Path) -> None:
    for rank in (0, 4):
        small(rank, world_size=8).write(tmp_path)
    run = load(tmp_path, cache=False)
    doubt = "their work is unknown, and waiting for them appears as transfer"
    assert run.warnings == (f"ranks missing: 1-3, 5-7 of 8; {doubt}",)


def test_two_different_traces_of_a_rank_are_refused(tmp_path: Path) -> None:
    small(1).write(tmp_path)
    (tmp_path / "again.json.gz").write_bytes(gzip.compress(json.dumps(small(1, shift=3).document()).encode()))
    with pytest.raises(InputError, match="two traces are of rank 1") as error:
        load(tmp_path, cache=False)
    assert "\n" not in str(error.value)


def test_copy_of_a_trace_counts_once_and_is_named(tmp_path: Path) -> None:
    path = small(0, world_size=1).write(tmp_path)
    shutil.copy(path, tmp_path / "copy.json.gz")
    (tmp_path / "plain.json").write_bytes(gzip.decompress(path.read_bytes()))
    run = load(tmp_path, cache=False)
    assert len(run.ranks) == 1
    assert [line for line in run.warnings if "same trace; it counts once" in line] == list(run.warnings)
    assert len(run.warnings) == 2


def test_two_runs_of_all_ranks_in_one_folder_are_refused(tmp_path: Path) -> None:
    for attempt in range(2):
        for rank in range(2):
            document = json.dumps(small(rank, world_size=2, shift=attempt).document())
            (tmp_path / f"attempt{attempt}-rank{rank}.json").write_text(document)
    with pytest.raises(InputError, match="the folder holds several runs or windows"):
        load(tmp_path, cache=False)


def test_unreadable_rank_is_named_and_the_rest_is_used(tmp_path: Path) -> None:
    small(0, world_size=2).write(tmp_path)
    (tmp_path / trace_file(1)).write_bytes(b"not gzip at all")
    run = load(tmp_path, cache=False)
    assert [r.rank for r in run.ranks] == [0]
    assert len(run.unreadable) == 1
    assert any(line.startswith("skipped ") for line in run.warnings)
    assert any(line.startswith("ranks missing: 1 of 2") for line in run.warnings)
    assert run.world_size == 2


def test_file_that_claims_no_rank_is_left_out_and_named(tmp_path: Path) -> None:
    small(0, world_size=1).write(tmp_path)
    (tmp_path / "settings.json").write_text('{"lr": 0.1}')
    run = load(tmp_path, cache=False)
    assert run.unreadable == ()
    assert len(run.warnings) == 1
    assert run.warnings[0].startswith("left out, not a trace of a rank: ")


@pytest.mark.parametrize("text", ["{", "[1]", "[" * 100_000, "\xff"])
def test_damaged_run_json_is_said_and_not_fatal(tmp_path: Path, text: str) -> None:
    small(0, world_size=1).write(tmp_path)
    (tmp_path / "run.json").write_text(text)
    run = load(tmp_path, cache=False)
    assert run.description == {}
    assert any(line.startswith("run.json is damaged") for line in run.warnings)
