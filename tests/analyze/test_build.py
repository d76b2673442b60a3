"""The builder of constructed runs gives back what was put in."""

from pathlib import Path

import numpy as np
from tests.analyze.build import RankTrace, built_run, true_ns

from stepscope.contract.collectives import OP_CODE
from stepscope.trace.classify import EventKind


def test_built_run_joins_launch_operator_step_and_collective(tmp_path: Path) -> None:
    ranks = []
    for rank in (0, 1):
        r = RankTrace(rank, world_size=2, clock_offset_us=rank * 250.5)
        r.step(4, 0, 1000)
        with r.op("aten::mm", 10, 40):
            r.kernel("gemm", at=20, start=50, end=150)
        r.kernel("orphan", at=None, start=-20, end=5)
        r.collective("allreduce", at=200, start=300, end=700, elements=1024)
        ranks.append(r)
    run = built_run(tmp_path, ranks)

    first, second = run.ranks
    assert first.steps.number.tolist() == [4]
    assert first.work.start_ns.tolist() == [true_ns(-20), true_ns(50), true_ns(300)]
    assert first.work.step.tolist() == [-1, 0, 0]
    assert first.work.kind.tolist() == [EventKind.KERNEL, EventKind.KERNEL, EventKind.COMM_KERNEL]
    op_name = first.trace["name"][first.work.op_row[1]]
    assert first.trace.text(int(op_name)) == "aten::mm"
    assert first.collectives.op.tolist() == [OP_CODE["all_reduce"]]
    assert first.collectives.in_bytes.tolist() == [4096]
    assert first.collectives.groups[0].ranks == (0, 1)
    assert np.array_equal(second.work.start_ns - first.work.start_ns, np.full(3, 250_500))
