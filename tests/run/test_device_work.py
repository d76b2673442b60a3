"""Kernels find their launch, operator, step and device; what cannot be joined is counted."""

from pathlib import Path
from typing import Any

import pytest
from tests.run.traces import Event, event, rank_of

from stepscope.errors import TraceError
from stepscope.run.device_work import MAX_STREAMS
from stepscope.run.load import unread_lines
from stepscope.run.rank import Rank, quality_warnings


def step(number: int, start: float, end: float) -> Event:
    return event("user_annotation", f"ProfilerStep#{number}", start, end - start)


def launch(at: float, correlation: int, name: str = "cudaLaunchKernel", tid: int = 1, **args: Any) -> Event:
    return event("cuda_runtime", name, at, 2, tid=tid, correlation=correlation, **args)


def kernel(start: float, correlation: int | None, name: str = "gemm", dur: float = 5, **args: Any) -> Event:
    linked: dict[str, Any] = {} if correlation is None else {"correlation": correlation}
    return event("kernel", name, start, dur, tid=7, **linked, **args)


def op_names(rank: Rank) -> list[str | None]:
    return [rank.trace.text(int(rank.trace["name"][row])) if row >= 0 else None for row in rank.work.op_row]


def test_work_without_a_launch_is_in_no_step_and_counted(tmp_path: Path) -> None:
    rank = rank_of(tmp_path, [step(0, 0, 100), kernel(10, 77), kernel(20, None), launch(30, 5), kernel(40, 5)])
    assert rank.work.step.tolist() == [-1, -1, 0]
    assert rank.joins.without_launch == 2
    assert rank.joins.device_events == 3


def test_launch_without_work_is_counted(tmp_path: Path) -> None:
    calls = [
        launch(1, 1),
        launch(2, 2, "cudaMemcpyAsync"),
        launch(3, 3, "cudaGraphLaunch"),
        launch(4, 4, "hipModuleLaunchKernel"),
    ]
    others = [launch(5, 5, "cudaStreamSynchronize"), launch(6, 6, "cudaEventRecord")]
    rank = rank_of(tmp_path, [*calls, *others, kernel(9, 1)])
    assert rank.joins.launches_without_work == 3


def test_records_dropped_at_the_start_of_a_session_are_bounded(tmp_path: Path) -> None:
    dropped = [launch(at, number) for at, number in ((1, 1), (4, 2), (7, 3))]
    recorded = [launch(10, 4), kernel(30, 4), launch(40, 5), kernel(60, 5), kernel(12, None, dur=3)]
    rank = rank_of(tmp_path, [step(0, 0, 100), *dropped, *recorded])
    assert (rank.joins.lost_first, rank.joins.lost_first_ns) == (3, 26_000)  # 1 to 30 us, less the 3 recorded
    assert "3 launches before the first with device work" in "\n".join(quality_warnings([rank]))
    later = rank_of(tmp_path, [step(0, 0, 100), *dropped, *recorded, *(launch(70 + n, 10 + n) for n in range(3))])
    assert later.joins.lost_first == 0  # launches without work all along are no start of a session


def test_reused_correlation_ids_are_counted(tmp_path: Path) -> None:
    rank = rank_of(tmp_path, [launch(1, 9), launch(5, 9), launch(8, 9), launch(9, 3), kernel(20, 9), kernel(30, 3)])
    assert rank.joins.reused_correlation == 2


def test_operator_by_external_id_or_else_by_the_call_stack(tmp_path: Path) -> None:
    rank = rank_of(
        tmp_path,
        [
            event("cpu_op", "outer", 0, 100, **{"External id": 1}),  # type: ignore[arg-type]
            event("cpu_op", "inner", 10, 50, **{"External id": 2}),  # type: ignore[arg-type]
            launch(20, 1, **{"External id": 2}),  # type: ignore[arg-type]
            launch(30, 2, **{"External id": 999}),  # type: ignore[arg-type]  # names nothing
            launch(70, 3),
            launch(80, 4, **{"External id": 2}),  # type: ignore[arg-type]  # names an operator that has already returned
            launch(200, 5),
            event("cpu_op", "elsewhere", 0, 500, tid=2),
            *(kernel(300 + 10 * k, k) for k in range(1, 6)),
        ],
    )
    assert op_names(rank) == ["inner", "inner", "outer", "outer", None]
    assert rank.joins.without_op == 1


def test_more_streams_than_any_job_has_are_one_line_of_error(tmp_path: Path) -> None:
    def on_streams(number: int) -> list[Event]:
        return [kernel(10 * i, None, dur=5, stream=i, device=0) for i in range(number)]

    assert len(rank_of(tmp_path, on_streams(MAX_STREAMS)).work) == MAX_STREAMS
    with pytest.raises(TraceError, match="work on 2,049 streams, where a rank has a few dozen") as error:
        rank_of(tmp_path, on_streams(MAX_STREAMS + 1))
    assert "\n" not in str(error.value)


def device(number: int, name: str, **more: Any) -> dict[str, Any]:
    return {"id": number, "name": name, "totalGlobalMem": 1, **more}


def with_kernel(folder: Path, on: int, properties: list[dict[str, Any]], name: str = "gemm", **header: Any) -> Rank:
    return rank_of(folder, [event("kernel", name, device=on, stream=7)], deviceProperties=properties, **header)


def test_the_device_that_ran_the_work_is_named_by_its_number_or_by_the_name_all_share(tmp_path: Path) -> None:
    assert with_kernel(tmp_path, 1, [device(0, "A"), device(1, "B")]).device_name == "B"
    assert with_kernel(tmp_path, 9, [device(0, "A"), device(1, "A")]).device_name == "A"
    assert with_kernel(tmp_path, 9, [device(0, "A"), device(1, "B")]).device_name is None


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        ("sm90_xmma_gemm_bf16", "NVIDIA GPU of compute capability 9.0"),
        ("ampere_sgemm_128x64_nn", "NVIDIA Ampere GPU"),
        ("Cijk_Ailk_Bljk_HHS_BH_MT64", "AMD GPU"),
        ("void elementwise_kernel", None),
    ],
)
def test_without_properties_the_kernels_tell_the_architecture(tmp_path: Path, kernel: str, name: str | None) -> None:
    assert with_kernel(tmp_path, 0, [], kernel).device_name == name


def labelled(process: str, thread: str, names: list[str]) -> list[Event]:
    meta = [
        {**event(None, what, ph="M"), "args": {"name": label}}
        for what, label in (("process_name", process), ("thread_name", thread))
    ]
    return [*meta, *(event(None, name, 10.0 * i, 5) for i, name in enumerate(names))]


def test_device_work_without_categories_is_told_by_its_process(tmp_path: Path) -> None:
    ascend = rank_of(tmp_path, labelled("Ascend Hardware", "Stream 12", ["MatMulV2", "hcom_allReduce_", "EVENT_WAIT"]))
    assert len(ascend.work) == 2 and len(ascend.collectives) == 1
    assert ascend.device_name == "Ascend Hardware"
    assert len(rank_of(tmp_path, labelled("/device:TPU:0", "XLA Ops", ["fusion.1", "copy.2"])).work) == 2
    around = rank_of(tmp_path, labelled("/device:TPU:0", "XLA Modules", ["jit_step"]))
    assert not len(around.work), "ranges around operations are not counted again"


def test_what_is_not_understood_is_named_with_its_count(tmp_path: Path) -> None:
    events = [event("mps_kernel", "gemm"), event("mps_kernel", "gemm"), event("Trace", "PyTorch Profiler (0)")]
    lines = unread_lines((rank_of(tmp_path, [*events, *labelled("Tool", "t", ["x"])]),))
    assert lines[0] == "2 events of category 'mps_kernel' are not understood and in no number here"
    assert "of process 'Tool'" in lines[1] and len(lines) == 2
