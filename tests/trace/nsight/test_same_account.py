"""An export of Nsight Systems alone is a full run: account, findings and verdict as of the Kineto traces of the job."""

import gzip
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
from stepscope.run.load import Run, load

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


def training(rank: int, *, world_size: int, late_us: float = 0) -> RankTrace:
    """Return steps with a forward, a backward, a partly hidden all-reduce, a copy and a synchronisation."""
    trace = RankTrace(rank, world_size=world_size)
    for step in range(6):
        begin = step * 10_000.0
        trace.step(step, begin, begin + 9_990)
        trace.copy(at=begin + 10, start=begin + 20, end=begin + 320, size_bytes=1 << 20)
        with trace.op("aten::mm", begin + 30, begin + 90):
            trace.kernel(
                "sm90_xmma_gemm_f32f32",
                at=begin + 40 + late_us,
                start=begin + 400 + late_us,
                end=begin + 2400 + late_us,
            )
        with trace.op(
            "autograd::engine::evaluate_function: MmBackward0",
            begin + 2500,
            begin + 3000,
            thread=200,
            **{"Fwd thread id": 1, "Sequence number": step},
        ):
            trace.kernel(
                "sm90_xmma_gemm_f32f32",
                at=begin + 2510 + late_us,
                start=begin + 2600 + late_us,
                end=begin + 4600 + late_us,
                thread=200,
            )
        trace.collective(
            "allreduce", at=begin + 2800 + late_us, start=begin + 3000 + late_us, end=begin + 7000, elements=1 << 22
        )
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
