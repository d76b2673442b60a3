"""Every event gets its kind, whichever version and chip wrote it."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.run.traces import event, trace_of

from stepscope.trace.classify import _COMMUNICATES, COMMUNICATION, EventKind, by_string, event_kinds, rows_named
from stepscope.trace.table import SparseColumn


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


def test_phase_comes_before_the_category(tmp_path: Path) -> None:
    events = [
        event("cpu_op", "process_name", ph="M"),
        event("kernel", "instant", ph="i"),
        event("ac2g", "ac2g", ph="s"),
        event("fwdbwd", "fwdbwd", ph="f"),
        event("cpu_instant_event", "[memory]", ph="i"),
        event("cpu_instant_event", "something else", ph="i"),
    ]
    assert event_kinds(trace_of(tmp_path, events)).tolist() == [
        EventKind.META,
        EventKind.OTHER,
        EventKind.FLOW,
        EventKind.FLOW,
        EventKind.MEMORY,
        EventKind.OTHER,
    ]


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


def test_host_ranges_named_like_kernels_stay_host(tmp_path: Path) -> None:
    events = [event("user_annotation", "nccl:all_reduce"), event("cpu_op", "c10d::allreduce_")]
    assert event_kinds(trace_of(tmp_path, events)).tolist() == [EventKind.ANNOTATION, EventKind.HOST_OP]


def test_rule_is_asked_once_per_distinct_name(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, [event("kernel", f"k{i % 3}") for i in range(300)])
    asked = []

    def rule(name: str) -> int:
        asked.append(name)
        return name == "k1"

    assert by_string(trace, trace["name"], rule).sum() == 100
    assert sorted(asked) == ["k0", "k1", "k2"]


def test_rows_named_keeps_only_matching_rows_of_those_given(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, [event("kernel", name) for name in "abab"])
    assert rows_named(trace, np.array([0, 1, 3]), lambda s: s == "b").tolist() == [1, 3]


def test_kernel_without_a_name_is_a_kernel_that_matches_no_name(tmp_path: Path) -> None:
    nameless = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 0, "ts": 1, "dur": 1}
    trace = trace_of(tmp_path, [nameless])
    assert event_kinds(trace).tolist() == [EventKind.KERNEL]
    assert rows_named(trace, np.array([0]), lambda _: True).tolist() == []


@pytest.mark.parametrize("asked", [[3], [0, 2, 3, 7, 9], list(range(12)), [-1, 3], []])
def test_sparse_column_gives_the_same_by_search_and_by_table(asked: list[int]) -> None:
    column = SparseColumn(np.array([2, 3, 9]), np.array([20, 30, 90]))
    many = np.array(asked, np.int64)
    expected = [{2: 20, 3: 30, 9: 90}.get(row, -5) for row in asked]
    assert column.at(many, missing=-5).tolist() == expected
    far = SparseColumn(np.array([2, 3, 9, 10_000]), np.array([20, 30, 90, 1]))  # too long for a table of so few rows
    assert far.at(many, missing=-5).tolist() == expected


@settings(deadline=None)
@given(st.from_regex(COMMUNICATION))
def test_every_name_of_communication_has_a_part_that_is_looked_for_first(name: str) -> None:
    assert not name.isascii() or any(part in name.lower() for part in _COMMUNICATES)
