"""Every event gets its kind, whichever version and chip wrote it."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.run.traces import event, trace_of

from stepscope.trace.classify import _COMMUNICATES, COMMUNICATION, EventKind, event_kinds


@pytest.mark.parametrize(
    ("category", "kind"),
    [
        ("kernel", EventKind.KERNEL),
        ("Kernel", EventKind.KERNEL),  # until 2021
        ("gpu_memcpy", EventKind.COPY),
        ("Memcpy", EventKind.COPY),
        ("gpu_memset", EventKind.SET),
        ("Memset", EventKind.SET),
        ("cuda_runtime", EventKind.RUNTIME),
        ("cuda_driver", EventKind.RUNTIME),
        ("Runtime", EventKind.RUNTIME),
        ("hip_runtime", EventKind.RUNTIME),
        ("xpu_runtime", EventKind.RUNTIME),
        ("cpu_op", EventKind.HOST_OP),
        ("Operator", EventKind.HOST_OP),
        ("user_annotation", EventKind.ANNOTATION),
        ("gpu_user_annotation", EventKind.DEVICE_ANNOTATION),
        ("python_function", EventKind.PYTHON),
        ("overhead", EventKind.OVERHEAD),
        ("cuda_sync", EventKind.DEVICE_SYNC),
        ("Trace", EventKind.OTHER),
        ("nobody knows", EventKind.OTHER),
        (None, EventKind.OTHER),
    ],
)
def test_category_gives_the_kind(tmp_path: Path, category: str | None, kind: EventKind) -> None:
    assert event_kinds(trace_of(tmp_path, [event(category, "x")])).tolist() == [kind]


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


@pytest.mark.parametrize(
    "name",
    ["sm90_xmma_gemm_bf16", "void at::native::reduce_kernel<512>", "triton_red_fused_sum_3", "step::epilogue<int>", ""],
)
def test_compute_kernels_are_not_communication(tmp_path: Path, name: str) -> None:
    assert event_kinds(trace_of(tmp_path, [event("kernel", name)])).tolist() == [EventKind.KERNEL]


@settings(deadline=None)
@given(st.from_regex(COMMUNICATION))
def test_every_name_of_communication_has_a_part_that_is_looked_for_first(name: str) -> None:
    assert not name.isascii() or any(part in name.lower() for part in _COMMUNICATES)
