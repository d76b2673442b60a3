"""Guides: shown when their subject applies, every item measured or said not to be."""

from pathlib import Path
from typing import Any

import pytest
from tests.analyze.build import RankTrace, built_run
from tests.diagnose.late import late_run

from stepscope.analyze.account import Account, account_of
from stepscope.analyze.efficiency import GivenValues
from stepscope.diagnose.guides import Guide, guides_of

MATMUL: dict[str, Any] = {"Input Dims": [[1024, 1024], [1024, 1024]], "Input type": ["float", "float"]}


def guides(account: Account) -> dict[str, Guide]:
    return {g.id: g for g in guides_of(account)}


def statuses(guide: Guide) -> dict[str, str]:
    return {i.check.id: i.check.status for i in guide.items}


def values(guide: Guide) -> dict[str, float | None]:
    return {i.check.id: i.check.value for i in guide.items}


def idle_device(folder: Path, *, tail_us: float = 900) -> Account:
    """Return a run of one rank: per step one 100 us product in fp32 that the host reads, then nothing."""
    r = RankTrace()
    for n in range(4):
        at = n * 1000
        r.step(n, at, at + 1000)
        with r.op("aten::mm", at + 2, at + 12, **MATMUL):
            r.kernel("ampere_sgemm_128x64_nn", at=at + 4, start=at + 12, end=at + 112)
        with r.op("aten::_local_scalar_dense", at + 20, at + 120):
            r.call("cudaStreamSynchronize", at + 25, at + 118)
        r.ran("aten::slow", at + 121, at + 100 + tail_us)
    return account_of(built_run(folder, [r]), given=GivenValues(peak_tflops=100))


def test_an_idle_device_is_explained_item_by_item(tmp_path: Path) -> None:
    found = guides(idle_device(tmp_path))["low-device-utilisation"]
    assert "10 %" in found.why
    failed = {name for name, status in statuses(found).items() if status == "fail"}
    assert failed and failed <= {"launch_gap_pct", "host_sync_pct", "host_stall_pct"}
    assert statuses(found)["data_loading_pct"] == "not measured"
    assert statuses(found)["copies_pct"] == "pass"


def test_low_mfu_names_wide_products(tmp_path: Path) -> None:
    account = idle_device(tmp_path)
    found = guides(account)["low-mfu"]
    assert found.why.startswith(f"MFU is {100 * (account.efficiency.mfu or 0):.1f} %")
    assert statuses(found)["sixteen_bit_pct"] == "fail" and statuses(found)["tensor_cores_pct"] == "fail"
    # 2 x 1024^3 FLOPs in 100 us are 21.5 TFLOP/s of the given 100.
    assert values(found)["matmul_rate_pct"] == pytest.approx(21.5, abs=0.1)
    assert values(found)["recomputed_pct"] == 0.0


def test_slow_communication_points_at_the_straggler_first(tmp_path: Path) -> None:
    found = guides(account_of(late_run(tmp_path)))["slow-communication"]
    assert found.items[0].check.id == "stragglers" and found.items[0].check.status == "fail"
    assert "rank 1" in found.items[0].check.reason
    # Per step three ranks wait 2000 us, and all four transfer for 300.
    assert values(found)["waiting_pct"] == pytest.approx(100 * 6000 / (6000 + 1200), abs=1)
    assert values(found)["message_mb"] == pytest.approx(4.0)
    assert statuses(found)["narrow_pct"] == "fail" and values(found)["syncs_per_step"] == 1


def test_short_kernels_on_an_idle_device_show_the_guide_on_small_batches(tmp_path: Path) -> None:
    r = RankTrace()
    for n in range(3):
        r.step(n, n * 1000, n * 1000 + 1000)
        for k in range(10):
            at = n * 1000 + 100 * k
            with r.op("aten::add", at + 5, at + 90):
                r.kernel("vectorized_elementwise_kernel", at=at + 10, start=at + 20, end=at + 24)
    found = guides(account_of(built_run(tmp_path, [r])))["small-batches"]
    assert values(found)["short_kernels_pct"] == 100.0
    assert statuses(found)["memory_pct_of_limit"] == "not measured"
