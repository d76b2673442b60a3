"""Communication kernels find their records: operation, bytes, group, peers."""

from pathlib import Path
from typing import Any

from tests.analyze.build import RankTrace, built_run
from tests.run.traces import event, rank_of

from stepscope.contract.collectives import OPS
from stepscope.run.collectives import Collectives
from stepscope.run.rank import Rank

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def rank(folder: Path, trace: RankTrace) -> Rank:
    return built_run(folder, [trace]).ranks[0]


def ops(c: Collectives) -> list[str]:
    return [OPS[o] for o in c.op]


def test_operation_bytes_and_group_of_a_record(tmp_path: Path) -> None:
    trace = RankTrace(1, world_size=4, descriptions={"0": "default_pg"})
    trace.step(3, 0, 900)
    trace.collective("allreduce", at=10, start=50, end=90, elements=100)
    trace.collective("_allgather_base", at=110, start=150, end=190, elements=100, out_elements=400, dtype="BFloat16")
    trace.collective("_reduce_scatter_base", at=210, start=250, end=290, elements=400, out_elements=100, dtype="Half")
    c = rank(tmp_path, trace).collectives
    assert ops(c) == ["all_reduce", "all_gather", "reduce_scatter"]
    assert c.in_bytes.tolist() == [400, 200, 800]
    assert c.out_bytes.tolist() == [400, 800, 200]
    assert c.full_bytes.tolist() == [400, 800, 800]
    assert c.step.tolist() == [0, 0, 0]
    assert [g.ranks for g in c.groups] == [(0, 1, 2, 3)]
    assert c.unjoined == 0


def test_range_around_the_launch_names_the_operation_and_shapes_give_bytes(tmp_path: Path) -> None:
    """Versions without arguments: an all-to-all is a kernel of sends and receives."""
    trace = RankTrace(0, world_size=2)
    trace.step(0, 0, 900)
    shapes: dict[str, Any] = {"Input Dims": [[6144], []], "Input type": ["float", ""]}
    with trace.op("record_param_comms", 5, 30, **shapes):
        trace.annotation("nccl:all_to_all", 6, 29)
        trace.kernel("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", at=10, start=40, end=60)
    c = rank(tmp_path, trace).collectives
    assert ops(c) == ["all_to_all"]
    assert c.in_bytes.tolist() == c.out_bytes.tolist() == [24576]


def test_arguments_on_the_kernel_itself_are_used(tmp_path: Path) -> None:
    record: dict[str, Any] = {
        "Collective name": "allreduce",
        "In msg nelems": 8,
        "Out msg nelems": 8,
        "dtype": "Float",
        "Group size": 2,
        "Process Group Name": "1",
    }
    c = rank_of(tmp_path, [event("kernel", NCCL, 5, 9, correlation=1, **record)]).collectives
    assert ops(c) == ["all_reduce"]
    assert c.in_bytes.tolist() == [32]
    assert (c.groups[0].name, c.groups[0].size) == ("1", 2)


def test_coalesced_messages_are_all_counted(tmp_path: Path) -> None:
    trace = RankTrace(1, world_size=4)
    trace.step(0, 0, 900)
    trace.messages(("recv", 0), ("send", 2), at=10, start=60, end=90, elements=100)
    trace.messages(("send", 0), at=110, start=160, end=190, elements=50)
    c = rank(tmp_path, trace).collectives
    assert ops(c) == ["send_recv", "send"]
    assert c.in_bytes.tolist() == [400, 200]
    assert c.out_bytes.tolist() == [400, 0]
    assert c.peer.tolist() == [-1, 0]
    m = c.messages
    assert list(
        zip(m.collective.tolist(), m.is_send.tolist(), m.peer.tolist(), m.size_bytes.tolist(), strict=True)
    ) == [
        (0, False, 0, 400),
        (0, True, 2, 400),
        (1, True, 0, 200),
    ]
