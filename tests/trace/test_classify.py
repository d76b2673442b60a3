"""Every event gets its kind, whichever version and chip wrote it."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.run.traces import event, trace_of

from stepscope.trace.classify import _COMMUNICATES, COMMUNICATION, EventKind, event_kinds


@pytest.mark.parametrize(
    "name",
    [
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",  # RCCL
        "oneccl_allreduce_large",
        "void deep_ep::internode::dispatch<(bool)0>(int4*)",
        "void deep_ep::intranode::combine<bfloat16>(...)",
        "void deepep::internode_ll::combine(int)",
        "nvshmemi_transfer_rma_p2p",
        "void (anonymous namespace)::one_shot_all_reduce_kernel<float>",
        "void symm_mem::multimem_all_gather_kernel<8>",
        "void vllm::cross_device_reduce_2stage<half, 8>",
        "mscclKernel_Sum_float_Simple",
        "HCOM_AllReduce__747_0",
        "void mori::ep::EpDispatch<float>",
        "void multimem_one_shot_all_reduce<float>",
        "void symm_mem::barrier()",
        "void two_shot_allreduce<half>",
        "void quickreduce::quick_all_reduce_two_shot<half>",
        "userbuffers_fp16_sum_inplace_gpu_rw",
    ],
)
def test_communication_kernels_of_all_libraries(tmp_path: Path, name: str) -> None:
    assert event_kinds(trace_of(tmp_path, [event("kernel", name)])).tolist() == [EventKind.COMM_KERNEL]


@settings(deadline=None)
@given(st.from_regex(COMMUNICATION))
def test_every_name_of_communication_has_a_part_that_is_looked_for_first(name: str) -> None:
    assert not name.isascii() or any(part in name.lower() for part in _COMMUNICATES)
