import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.not_none import not_none

from stepscope.contract.operations import PEAK_PRECISIONS
from stepscope.cost.chips import Chip, Peak, built_in_chips, chip, load_chips, look_up, mfu_peak, shared_names
from stepscope.errors import InputError

ROOT = Path(__file__).parents[3]


def known_chip(name: str, **given: Any) -> Chip:
    return not_none(chip(name, **given))


def known_peak(found: Chip, **given: Any) -> Peak:
    return not_none(mfu_peak(found, **given))


@pytest.mark.parametrize(
    ("device", "memory_bytes", "name", "tflops"),
    [
        ("NVIDIA H200", 150109880320, "H200 SXM", 989.4), ("NVIDIA H100 80GB HBM3", 85018279936, "H100 SXM", 989.4),
        ("NVIDIA H100 PCIe", 84942979072, "H100 PCIe", 756),
        ("NVIDIA A100-PG509-200", 42297524224, "A100 SXM 40GB", 312),
        ("NVIDIA A100-PG509-200", 85097971712, "A100 SXM 80GB", 312),
        ("Tesla V100-SXM2-32GB", 34079899648, "V100 SXM2 32GB", 125), ("NVIDIA B200", 191503138816, "B200", 2250),
        ("NVIDIA B300 SXM6 AC", 287416123392, "B300", 2250), ("NVIDIA GH200 120GB", 102005473280, "GH200 96GB", 989.5),
        ("NVIDIA GH200 480GB", 102005473280, "GH200 96GB", 989.5),
        ("NVIDIA GeForce RTX 4090", 25393692672, "RTX 4090", 165.2),
        ("AMD Instinct MI300X", 206141652992, "MI300X", 1307.4),
        ("AMD Instinct MI250X", 68702699520, "MI250X (one of two dies)", 191.5), ("GAUDI3", None, "Gaudi 3", 1835),
        ("AMD Instinct MI300X VF", 205571227648, "MI300X", 1307.4),
        ("Tesla V100-DGXS-32GB", 34084028416, "V100 DGX Station 32GB", 125),
        ("NVIDIA H100", 85018279936, "H100 SXM", 989.4), ("NVIDIA H100", 99875291136, "H100 NVL", 835.5),
    ],
)  # fmt: skip
def test_devices_are_found_by_the_names_traces_write(device, memory_bytes, name, tflops):
    found = not_none(chip(device, memory_bytes=memory_bytes))
    assert found.name == name
    assert known_peak(found).flops_per_s == pytest.approx(tflops * 1e12)


@pytest.mark.parametrize(
    ("device", "memory_bytes", "reason"),
    [
        ("AMD Radeon Graphics", 68702699520, "several AMD devices"),
        ("NVIDIA A100-PG509-200", None, "give its memory size"),
        ("NVIDIA H200", 40 * 2**30, "none of the known variants"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None, "MIG slice"),
        ("GRID A100-10C", None, "virtual GPU"),
        ("NVIDIA A16", None, "not in the hardware table"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None, "not in the hardware table"),
        ("cpu", None, "not in the hardware table"),
    ],
)
def test_what_name_and_memory_do_not_settle_stays_unknown(device, memory_bytes, reason):
    found = look_up(device, memory_bytes=memory_bytes)
    assert found.chip is None
    assert reason in str(found.reason)


def test_a_chip_is_known_by_what_reports_call_it():
    for row in built_in_chips():
        assert look_up(row.name).chip == row
    for name, called in (("mi300x", "MI300X"), ("AMD MI325X", "MI325X"), ("MI250X", "MI250X (one of two dies)")):
        found = look_up(name).chip
        assert found is not None and found.name == called
    assert look_up("RTX 4090 Laptop").chip is None


def test_the_rows_that_are_read_are_those_that_people_edit():
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "write_hardware.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert load_chips(ROOT / "src/stepscope/cost/hardware.toml") == built_in_chips()
    for shared in shared_names():
        assert shared.reason and all(re.compile(pattern) for pattern in shared.match)


def test_every_row_has_a_source_a_bandwidth_and_rising_peaks():
    for row in built_in_chips():
        assert len(row.source) > 10 and any(year in row.source for year in map(str, range(2016, 2027))), row.name
        assert row.memory_gb_per_s and row.link and row.link_gb_per_s, row.name
        peaks = [row.tflops[p] for p in ("fp32", "tf32", "fp16", "fp8") if p in row.tflops]
        assert peaks == sorted(peaks), f"{row.name}: a narrower type is never slower"
        assert set(row.tflops) <= set(PEAK_PRECISIONS)


OWN = """
[[chip]]
name = "My Chip"
match = ["My Device.*", "NVIDIA H200"]
tflops = { bf16 = 500 }
source = "measured"
"""


def test_a_users_row_goes_before_ours(tmp_path):
    (path := tmp_path / "chips.toml").write_text(OWN)
    rows = load_chips(path)
    assert known_chip("my device 7", extra=rows).name == "My Chip"
    assert known_chip("NVIDIA H200", memory_bytes=1, extra=rows).name == "My Chip"
    assert known_chip("NVIDIA B200", extra=rows).name == "B200"
    assert known_peak(rows[0]).source == "My Chip: measured"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("bf16 = 500", "bf17 = 500"), "field 'tflops.bf17' is not known; it can be fp64"),
        (("bf16 = 500", "bf16 = -1"), "field 'tflops.bf16' has to be a number above 0, not -1"),
        (("tflops = { bf16 = 500 }", ""), "field 'tflops' has to be dense peaks"),
        (('source = "measured"', ""), "field 'source' has to be text, not None"),
        (('["My Device.*", "NVIDIA H200"]', '"H200"'), "field 'match' has to be a list of device names"),
        (("My Device.*", "(unclosed"), "field 'match' has to hold regular expressions"),
        (('source = "measured"', 'source = "x"\nmemory_gbs = 5'), "field 'memory_gbs' is not known; it can be"),
        (("[[chip]]", "[[chip"), "is not TOML: "),
    ],
)
def test_a_bad_row_is_refused_with_the_field_named(tmp_path, change, message):
    (path := tmp_path / "chips.toml").write_text(OWN.replace(*change))
    with pytest.raises(InputError) as refused:
        load_chips(path)
    assert message in str(refused.value)
    assert "chips.toml" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_docs_page_shows_every_row_as_it_is():
    page = (ROOT / "docs/hardware.md").read_text(encoding="utf-8")
    for row in built_in_chips():
        peak = known_peak(row).flops_per_s / 1e12
        bandwidth, link = f"{row.memory_gb_per_s:g}", f"{row.link_gb_per_s:g} ({row.link})"
        line = next((line for line in page.splitlines() if line.startswith(f"| {row.name} |")), "")
        assert f"| {peak:g} |" in line and f"| {bandwidth} | {link} |" in line, row.name
