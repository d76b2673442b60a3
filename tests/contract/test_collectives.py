"""All names of one collective are the same operation; sizes follow from recorded shapes."""

import pytest

from stepscope.contract.collectives import element_bytes, is_comm_annotation, op_name
from stepscope.run.collectives.shapes import element_counts, shape_bytes

NAMES = {
    "all_reduce": "allreduce nccl:all_reduce c10d::allreduce_ allreduce_coalesced _c10d_functional::all_reduce "
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
    "all_gather": "_allgather_base allgather gloo:all_gather all_gather_into_tensor_coalesced "
    "ncclKernel_AllGather_RING_LL_Sum_int8_t",
    "reduce_scatter": "_reduce_scatter_base reduce_scatter_tensor_coalesced ncclKernel_ReduceScatter_RING_LL_Sum",
    "all_to_all": "all_to_all all_to_allv c10d::alltoall_base_ gloo:all_to_all",
    "broadcast": "broadcast _broadcast_oop ncclDevKernel_Broadcast_RING_LL",
    "reduce": "reduce c10d::reduce_ ncclDevKernel_Reduce_Sum_f32_RING_LL",
    "gather": "gather c10d::gather_",
    "scatter": "scatter c10d::scatter_",
    "barrier": "barrier gloo:barrier",
    "send": "send c10d::send gloo:send",
    "recv": "recv c10d::recv_",
    "send_recv": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "unknown": "ncclDevKernel_Generic_4 coalesced",
}


@pytest.mark.parametrize("op", NAMES)
def test_every_name_of_an_operation(op: str) -> None:
    names = NAMES[op].split()
    assert {name: op_name(name) for name in names} == dict.fromkeys(names, op)


def test_waiting_for_a_collective_is_no_collective() -> None:
    assert is_comm_annotation("nccl:all_reduce")
    assert is_comm_annotation("c10d::allreduce_")
    assert not is_comm_annotation("_c10d_functional::wait_tensor")
    assert not is_comm_annotation("_c10d_functional::_wrap_tensor_autograd")
    assert not is_comm_annotation("DistributedDataParallel.forward")


def test_sizes_of_element_types() -> None:
    assert [element_bytes(t) for t in ("Float", "BFloat16", "c10::BFloat16", "Long", "Byte", None, "quaternion")] == [
        4,
        2,
        2,
        8,
        1,
        None,
        None,
    ]


def test_bytes_of_the_first_input_that_is_a_tensor() -> None:
    assert shape_bytes("[[], [3, 5], [7]]", '["Scalar", "c10::Half", "float"]') == 30
    assert shape_bytes("[[0, 5]]", '["float"]') == 0
    assert shape_bytes(None, None) == -1


@pytest.mark.parametrize(
    ("dims", "types"),
    [
        ("[" * 50_000, '["float"]'),
        ("7", '["float"]'),
        ("[[1]]", "[7]"),
        ("[[1]]", "7"),
        ('[["x"]]', '["float"]'),
        ("[[-3]]", '["float"]'),
        ("[[99999999999999999999, 99999999999999999999]]", '["float"]'),
        ("[[1.5]]", '["float"]'),
        ("{}", "{}"),
        ("nonsense", '["float"]'),
    ],
)
def test_hostile_shapes_have_no_size(dims: str, types: str) -> None:
    assert shape_bytes(dims, types) == -1
    element_counts(dims)


def test_element_counts_look_into_lists_of_tensors() -> None:
    assert element_counts("[[[67848]], [], [], []]") == {67848}
    assert element_counts("[[2000], [10, 100], []]") == {2000, 1000}
    assert element_counts(None) == frozenset()
    assert element_counts("3") == frozenset()
