"""Every event gets its kind and its call-stack parent; the page of columns is what the schema says."""

import subprocess
import sys
from collections import deque

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from tests.run.traces import event, trace_of

from stepscope.trace import scanner as call_stack
from stepscope.trace.scanner import Instance, call_stack_parents
from stepscope.trace.table import EventKind, event_kinds


@pytest.mark.parametrize(
    "name",
    [
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "oneccl_allreduce_large",
        "void deep_ep::internode::dispatch<(bool)0>(int4*)", "void deep_ep::intranode::combine<bfloat16>(...)",
        "void deepep::internode_ll::combine(int)", "nvshmemi_transfer_rma_p2p",
        "void (anonymous namespace)::one_shot_all_reduce_kernel<float>",
        "void symm_mem::multimem_all_gather_kernel<8>", "void vllm::cross_device_reduce_2stage<half, 8>",
        "mscclKernel_Sum_float_Simple", "HCOM_AllReduce__747_0", "void mori::ep::EpDispatch<float>",
        "void multimem_one_shot_all_reduce<float>", "void symm_mem::barrier()", "void two_shot_allreduce<half>",
        "void quickreduce::quick_all_reduce_two_shot<half>", "userbuffers_fp16_sum_inplace_gpu_rw",
    ],
)  # fmt: skip
def test_communication_kernels_of_all_libraries(tmp_path, name):
    assert event_kinds(trace_of(tmp_path, [event("kernel", name)])).tolist() == [EventKind.COMM_KERNEL]


Rows = list[tuple[int, int, int]]


@pytest.fixture(params=["stack", "few"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask the scanner's stack, or the way of few events, which is taken as long as there is no instance."""
    monkeypatch.setattr(call_stack, "_IDLE", deque([Instance()] if request.param == "stack" else [], maxlen=4))


def parents(rows: Rows) -> list[int]:
    thread, start, end = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    return call_stack_parents(thread, start, end).tolist()


def enclosing(rows: Rows, i: int) -> int:
    """Return the parent by the definition: the last row before that encloses this one."""
    thread, start, end = rows[i]
    for j in range(i - 1, -1, -1):
        other_thread, other_start, other_end = rows[j]
        encloses = other_start <= start and end <= other_end and (start < other_end or start == other_start)
        if thread == other_thread and encloses:
            return j
    return -1


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(0, 8)), min_size=1, max_size=25))
def test_parent_is_the_innermost_enclosing_event(some):
    rows = sorted(((t, s, s + d) for t, s, d in some), key=lambda r: (r[0], r[1], -r[2]))
    assert parents(rows) == [enclosing(rows, i) for i in range(len(rows))]


def test_instance_at_hand_does_not_disturb_the_end_of_the_process():
    code = (
        "import numpy as np; from stepscope.trace import scanner; ask = scanner.call_stack_parents; "
        "rows = np.arange(scanner.CHUNK_ROWS + 1); ask(rows * 0, rows, rows + 1); assert scanner._IDLE"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
