"""Devices are named from what a trace holds; what other vendors' tools record is device work, or said to be unread."""

from pathlib import Path
from typing import Any

import pytest
from tests.run.traces import Event, event, rank_of

from stepscope.run.load import unread_lines
from stepscope.run.rank import Rank


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
