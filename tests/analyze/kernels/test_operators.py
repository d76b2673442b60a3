"""The operator table gives back what was put in: self and total, host and device, memory, shapes."""

from pathlib import Path

import pytest
from tests.analyze.build import AUTOGRAD, RankTrace, built_run

from stepscope.analyze.operators import operator_table
from stepscope.records import Row
from stepscope.run.load import load

STACKS = Path(__file__).parents[2] / "data" / "h200-python-stacks"


def two_threads(rank: int = 0, *, world_size: int = 1, mm_kernel_us: float = 100) -> RankTrace:
    """aten::linear calls aten::mm, which launches; aten::to calls itself; backward on its own thread."""
    r = RankTrace(rank, world_size=world_size, clock_offset_us=rank * 250)
    r.step(0, 0, 1000)
    with (
        r.op("aten::linear", 0, 100, **{"Input Dims": [[8, 4], [2, 4]]}),  # type: ignore[arg-type]
        r.op("aten::mm", 20, 60, **{"Input Dims": [[8, 4], [4, 2]]}),  # type: ignore[arg-type]
    ):
        r.kernel("gemm", at=30, start=100, end=100 + mm_kernel_us)
        r.memory(4096, at=25)
    with r.op("aten::mm", 110, 140, **{"Input Dims": [[2, 2], [2, 2]]}):  # type: ignore[arg-type]
        r.kernel("gemm", at=120, start=300, end=310)
        r.memory(-1024, at=125)
        r.memory(64, at=126, on_device=False)
    with r.op("aten::to", 200, 300), r.op("aten::_to_copy", 210, 290), r.op("aten::to", 220, 280):
        r.kernel("copy", at=230, start=400, end=450)
    with r.op("aten::mul", 0, 500, thread=AUTOGRAD):
        pass
    r.kernel("orphan", at=None, start=0, end=7)
    return r


def named(table: Row) -> dict[str, Row]:
    return {o.name: o for o in table.operators}


@pytest.fixture
def table(tmp_path: Path) -> Row:
    return operator_table(built_run(tmp_path, [two_threads()]).ranks)


def test_self_excludes_and_total_includes_what_was_called(table: Row) -> None:
    linear, mm = named(table)["aten::linear"], named(table)["aten::mm"]
    assert (linear.calls, linear.host_self_ns, linear.host_total_ns) == (1, 60_000, 100_000)
    assert (linear.device_self_ns, linear.device_total_ns) == (0, 100_000)
    assert (mm.calls, mm.host_self_ns, mm.host_total_ns) == (2, 70_000, 70_000)
    assert (mm.device_self_ns, mm.device_total_ns) == (110_000, 110_000)


def test_an_operator_that_calls_itself_counts_its_time_once(table: Row) -> None:
    to = named(table)["aten::to"]
    assert (to.calls, to.host_self_ns, to.host_total_ns) == (2, 80_000, 100_000)
    assert (to.device_self_ns, to.device_total_ns) == (50_000, 50_000)


def test_a_real_trace() -> None:
    table = operator_table(load(STACKS, cache=False).ranks)
    mm = named(table)["aten::mm"]
    assert mm.calls == 54
    assert mm.shapes == "[[1024, 512], [512, 32768]]"
    assert mm.device_memory_bytes and mm.device_memory_bytes > 0
