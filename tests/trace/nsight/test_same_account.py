"""Nsight exports alone are full runs; CSV of Nsight Compute in every form."""

import csv
import gzip
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.analyze.build import RankTrace, built_run
from tests.trace.nsight.kineto_as_nsys import write_nsys

from stepscope.analyze.account import account_of
from stepscope.diagnose.findings import diagnose
from stepscope.document.report import report_json
from stepscope.errors import InputError
from stepscope.run.load import Run, load
from stepscope.trace.ncu import is_ncu_csv, read_ncu_csv

DATA = Path(__file__).parents[2] / "data"


def report_of(run: Run) -> dict[str, Any]:
    account = account_of(run)
    return report_json(account, diagnose(account))


def both(folder: Path, ranks: list[RankTrace]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the report of the Kineto traces and that of one export per rank: ranks of one export share their clock."""
    for name in ("kineto", "nsys"):
        (folder / name).mkdir()
    kineto = built_run(folder / "kineto", ranks)
    for rank in ranks:
        write_nsys(folder / "nsys" / f"rank{rank.rank:05d}.nsys.sqlite", [rank.document()])
    return report_of(kineto), report_of(load(folder / "nsys", cache=False))


GEMM = "sm90_xmma_gemm_f32f32"


def training(rank: int, *, world_size: int, late_us: float = 0) -> RankTrace:
    """Return steps with a forward, a backward, a partly hidden all-reduce, a copy and a synchronisation."""
    trace = RankTrace(rank, world_size=world_size)
    for step in range(6):
        begin, late = step * 10_000.0, step * 10_000.0 + late_us
        trace.step(step, begin, begin + 9_990)
        trace.copy(at=begin + 10, start=begin + 20, end=begin + 320, size_bytes=1 << 20)
        with trace.op("aten::mm", begin + 30, begin + 90):
            trace.kernel(GEMM, at=late + 40, start=late + 400, end=late + 2400)
        node, args = "autograd::engine::evaluate_function: MmBackward0", {"Fwd thread id": 1, "Sequence number": step}
        with trace.op(node, begin + 2500, begin + 3000, thread=200, **args):
            trace.kernel(GEMM, at=late + 2510, start=late + 2600, end=late + 4600, thread=200)
        trace.collective("allreduce", at=late + 2800, start=late + 3000, end=begin + 7000, elements=1 << 22)
        trace.call("cudaStreamSynchronize", begin + 7000, begin + 9_000)
    return trace


SAME = ("run", "ranks", "step", "waterfall", "idle", "critical_path", "verdict", "stragglers", "kernels")
FINDING = ("id", "title", "ranks", "cost_ms_per_step", "saving_ms_per_step", "saving_alone_ms", "confidence", "cause")


def assert_equal_reports(kineto: dict[str, Any], nsys: dict[str, Any], parts: Sequence[str] = SAME) -> None:
    for part in parts:
        mine, theirs = kineto[part], nsys[part]
        if part == "run":
            mine, theirs = ({k: v for k, v in of.items() if k not in ("name", "sources")} for of in (mine, theirs))
        if part == "ranks":  # the calls that make communicators are events too
            mine, theirs = ([{k: v for k, v in r.items() if k != "num_events"} for r in of] for of in (mine, theirs))
        assert mine == theirs, part
    assert [{k: f[k] for k in FINDING} for f in kineto["findings"]] == [
        {k: f[k] for k in FINDING} for f in nsys["findings"]
    ]
    unnamed = [[{k: v for k, v in c.items() if k != "group"} for c in of["collectives"]] for of in (kineto, nsys)]
    assert unnamed[0] == unnamed[1]


def test_job_with_collectives_has_the_same_account_and_findings(tmp_path: Path) -> None:
    kineto, nsys = both(tmp_path, [training(r, world_size=2) for r in range(2)])
    assert kineto["findings"], "a job with nothing to find would compare nothing"
    assert kineto["collectives"][0]["bytes"] == 6 * 4 * (1 << 22)
    assert_equal_reports(kineto, nsys)


def test_late_rank_is_named_from_an_export(tmp_path: Path) -> None:
    kineto, nsys = both(tmp_path, [training(r, world_size=4, late_us=1500 * (r == 2)) for r in range(4)])
    assert nsys["collectives"][0]["late_rank"] == 2
    assert_equal_reports(kineto, nsys)


REAL = {
    "h200-fsdp2": ("run", "ranks", "step", "idle", "verdict"),
    "h200-cuda-graphs": ("run", "ranks", "step", "verdict"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", REAL)
def test_real_trace_as_an_export_has_the_same_account(tmp_path: Path, case: str) -> None:
    """Element types, and the FLOPs that need them, are not in an export; everything that is measured is."""
    source = DATA / case
    for path in source.glob("*.json.gz"):
        write_nsys(tmp_path / f"{path.name.split('.')[0]}.sqlite", [json.loads(gzip.decompress(path.read_bytes()))])
    kineto, nsys = report_of(load(source, cache=False)), report_of(load(tmp_path, cache=False))
    assert_equal_reports(kineto, nsys, REAL[case])
    times = [[(k["name"], k["count"], k["total_ms"]) for k in of["kernels"]] for of in (kineto, nsys)]
    assert times[0] == times[1]


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_and_world_come_from_communicators(tmp_path: Path, rank: int) -> None:
    documents = [training(r, world_size=2).document() for r in (rank, 1 - rank)]
    run = load(write_nsys(tmp_path / "job.sqlite", documents), cache=False)
    assert [(r.rank, r.rank_source, r.world_size) for r in run.ranks] == [
        (0, "distributedInfo", 2),
        (1, "distributedInfo", 2),
    ]
    assert [r.trace.header["nsight"]["process"] for r in run.ranks] == [100 + rank, 101 - rank]


NCU_DATA = Path(__file__).parents[2] / "data" / "ncu-h200"
OLD = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Kernel Time", "Context", "Stream",
       "Section Name", "Metric Name", "Metric Unit", "Metric Value")  # fmt: skip
NEW = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size",
       "Device", "CC", "Section Name", "Metric Name", "Metric Unit", "Metric Value")  # fmt: skip


def written(path: Path, *rows: tuple[str, ...], before: str = "") -> Path:
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    path.write_text(before + text.getvalue())
    return path


def new_row(metric: str, unit: str, value: str, *, launch: str = "0", name: str = "gemm") -> tuple[str, ...]:
    return launch, "7", "python", "h", name, "1", "7", "(128, 1, 1)", "(64, 2, 1)", "0", "9.0", "S", metric, unit, value


def test_real_wide_file_gives_what_the_tool_shows() -> None:
    read = read_ncu_csv(NCU_DATA / "wide.csv")
    assert (len(read.launches), read.unusable) == (8, 0)
    product, relu, add, softmax = read.launches[:4]
    assert product.name == "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT"
    assert (product.grid, product.block, product.device) == ((2, 64, 1), (384, 1, 1), 0)
    assert (product.occupancy_pct, product.sm_pct, product.dram_pct, product.tensor_pct) == (14.18, 75.0, 5.3, 84.31)
    assert product.duration_ns == 33_056
    assert add.tensor_pct == 0.0 and add.stalls[0][0] == "long_scoreboard"
    assert sum(share for _, share in relu.stalls) == pytest.approx(1)
    assert add.dram_bytes == pytest.approx(36_045_568)
    assert softmax.stalls[0][0] == "wait"


def test_real_long_file_gives_the_same_launches() -> None:
    wide, long = read_ncu_csv(NCU_DATA / "wide.csv"), read_ncu_csv(NCU_DATA / "long.csv")
    assert [(x.name, x.grid, x.block) for x in long.launches] == [(x.name, x.grid, x.block) for x in wide.launches]
    for one, other in zip(long.launches, wide.launches, strict=True):
        assert one.occupancy_pct == pytest.approx(other.occupancy_pct, rel=0.05)
        assert one.dram_pct == pytest.approx(other.dram_pct, rel=0.05)
        assert one.duration_ns == pytest.approx(other.duration_ns, rel=0.07)
        assert one.stalls == ()


def test_old_form_without_block_and_grid(tmp_path: Path) -> None:
    row = ("0", "7", "python", "h", "gemm", "12:00", "1", "7", "SpeedOfLight", "SOL SM", "%", "71.25")
    duration = (*row[:9], "Duration", "usecond", "1,234.50")
    (launch,) = read_ncu_csv(written(tmp_path / "x.csv", OLD, row, duration, before="==PROF== Connected\n")).launches
    assert (launch.grid, launch.sm_pct, launch.duration_ns) == (None, 71.25, 1_234_500.0)


def test_decimal_commas(tmp_path: Path) -> None:
    rows = (new_row("Achieved Occupancy", "%", "12,34"), new_row("Duration", "nsecond", "1.234"))
    (launch,) = read_ncu_csv(written(tmp_path / "x.csv", NEW, *rows)).launches
    assert (launch.occupancy_pct, launch.duration_ns) == (12.34, 1234.0)


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", '"ID","Other"\n"0","1"\n', "==PROF== nothing\n"])
def test_other_files_are_refused_in_one_line(tmp_path: Path, text: str) -> None:
    (path := tmp_path / "x.csv").write_text(text)
    assert not is_ncu_csv(text.encode())
    with pytest.raises(InputError) as error:
        read_ncu_csv(path)
    assert "\n" not in str(error.value)
