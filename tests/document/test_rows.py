"""One declaration per table: the contract's keys, and the same number in JSON (ms) and in queries (ns)."""

from pathlib import Path
from typing import Any

import pytest

import stepscope
from stepscope.document.rows import SCHEMAS, TABLES, Column, in_ms, json_rows, shown
from stepscope.records import Row

DATA = Path(__file__).parents[1] / "data"
CONTRACT = {
    "ranks": "rank host num_events num_steps step_ms window_ms compute_ms comm_ms memory_ms exposed_comm_ms idle_ms "
    "overlap_pct wait_ms transfer_ms clock_offset_us clock_uncertainty_us",
    "step_budget": "part ms_per_step pct",
    "efficiency": "mfu hfu flops_per_step flops_source peak_tflops peak_source precision",
    "waterfall": "loss pct_of_peak ms_per_step plus_minus",
    "collectives_by_group": "op group count bytes wait_ms transfer_ms exposed_ms algbw_gb_per_s busbw_gb_per_s "
    "late_rank",
    "checks": "id value good bad status reason",
    "stragglers": "rank cause late_ms_per_step steps_late score",
    "code": "file line module device_ms host_ms comm_ms exposed_ms saving_ms",
    "costly_lines": "file line module critical_ms pct",
    "findings": "id title ranks cost_ms_per_step saving_ms_per_step saving_low_ms saving_high_ms saving_pct "
    "saving_alone_ms confidence where evidence cause remedy",
    "evidence": "what value unit where",
    "attempts": "started ended reason",
}
IN_REPORT = {
    "ranks": "ranks", "collectives_by_group": "collectives", "waterfall": "waterfall", "stragglers": "stragglers",
    "critical_path": "critical_path", "findings": "findings", "checks": "checks",
}  # fmt: skip


@pytest.mark.parametrize("table", CONTRACT)
def test_declaration_has_the_keys_of_the_contract(table: str) -> None:
    assert set(CONTRACT[table].split()) <= {column.json_key for column in SCHEMAS[table].columns}


def test_names_and_keys_are_distinct() -> None:
    for schema in SCHEMAS.values():
        for names in ([c.name for c in schema.columns], [c.json_key for c in schema.columns if c.json_key]):
            assert len(set(names)) == len(names), schema.name


@pytest.mark.parametrize("folder", ["gloo-ddp", "h200-fsdp2"])
def test_json_and_queries_hold_the_same_numbers(folder: str) -> None:
    run = stepscope.load(DATA / folder, cache=False)
    compared = 0
    for table, key in IN_REPORT.items():
        found, written = list(run.table(table)), run.document[key]
        assert len(found) == len(written), table
        for row, told in zip(found, written, strict=True):
            for column in (c for c in TABLES[table].columns if c.json_key):
                compared += _agrees(column, row[column.name], told[column.json_key])
    assert compared > 50


def _agrees(column: Column, queried: Any, written: Any) -> bool:
    if queried is None or written is None:
        assert queried is written is None, column.name
    elif column.dtype == "text":
        assert queried == (",".join(map(str, written)) if isinstance(written, list) else str(written))
    else:
        per_key = {"us": 1e3, "ms": 1e6}
        unit = next((u for u in per_key if u in column.json_key.split("_") and u not in column.name.split("_")), None)
        assert written == pytest.approx(queried / per_key[unit] if unit else queried, abs=1e-3), column.name
    return queried is not None


def test_nested_times_are_in_milliseconds_and_pages_show_declared_columns() -> None:
    row = Row(source="step logs", **dict.fromkeys(c.name for c in SCHEMAS["steadiness"].columns[1:]))
    row["spikes"] = (Row(step=3, ns=2_500_000, extra_ns=None),)
    (written,) = json_rows("steadiness", [row])
    assert written["spikes"] == [{"step": 3, "ms": 2.5, "extra_ms": None}] and written["warm_up_ms"] is None
    assert in_ms({"wait_ns": (1_000_000, None), "rank": 1}) == {"wait_ms": [1.0, None], "rank": 1}
    assert shown("critical_path", "ms_per_step", "pct") == [
        ("per step", "ms", "ms_per_step"),
        ("of the path", "pct", "pct"),
    ]
