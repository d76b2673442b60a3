"""A sweep on the terminal: every variant is there, and hostile text stays text."""

import io
from typing import Any

import pytest
from rich.console import Console
from tests.results.sweeps.test_verdict import TOLERANCE, row

from stepscope.report.text.bench import print_sweep
from stepscope.results.sweeps import sweep_verdict


def shown(
    *rows: dict[str, Any], width: int = 160, pipe: bool = False, reason: str = "no memory", device: str = "NVIDIA H200",
    **sweep: Any,
) -> str:  # fmt: skip
    series = rows or (row("slow", 100, flops=45e12), row("quick", 50, memory_gb=3.0, flops=45e12))
    variants = [{"name": n, "tolerance": None} for n in (*(r["name"] for r in series), "large")]
    about = {
        "name": "trial", "question": "which?", "goal": "time", "reference": "first", "tolerance": TOLERANCE,
        "variants": variants, "refusals": {"large": {"what": "out_of_memory", "reason": reason}}, **sweep,
    }  # fmt: skip
    document = {"sweep": about, "series": series, "environment": {"device": device, "device_memory_gb": None}}
    out = io.StringIO()
    print_sweep(document, sweep_verdict(document), Console(file=out, width=width, soft_wrap=pipe))
    return out.getvalue()


def test_variants_advice_and_refusals_are_shown() -> None:
    text = shown()
    assert "large: out of memory: no memory" in text
    assert "-> use quick" in text and "MFU against 989 TFLOP/s" in text and "rounding" in text


def test_fitting_sizes_are_shown() -> None:
    found = {"largest": 96, "did_not_fit": {"128": "-", "112": "no more"}, "memory_limit_bytes": 4 * 10**8}
    assert "largest batch that fits in 0.40 GB: 96; 112 does not: no more" in shown(fitting=found)


@pytest.mark.parametrize("reason", ["[/red]", "\x1b]52;c;x\x07", "two\nlines"])
def test_reasons_steer_no_terminal(reason: str) -> None:
    text = shown(width=40, reason=reason)
    assert "\x1b" not in text and "-> use quick" in text


def test_text_says_by_what_results_were_judged_where_the_first_differs_from_itself() -> None:
    exact = {"gradient": 0.0, "loss": 0.0, "why": "the same samples"}
    rows = row("slow", 100, own=5e-4, runs=2), row("quick", 50, off=6e-4, runs=2)
    text = shown(*rows, width=400, tolerance=exact, reordered=TOLERANCE)
    assert "slow, quick: slow differs from itself between runs by 5.0e-04 in the gradient" in text
    assert "is out" not in text


def test_columns_of_a_gpu_are_left_out_without_one() -> None:
    cpu = shown(row("a", 10, memory_gb=0.0042), device="A processor")
    assert "reserved GB" not in cpu and "MFU %" not in cpu and "0.00420" in cpu
    gpu = shown(row("a", 10, memory_gb=11.4, reserved_gb=11.95))
    assert "reserved GB" in gpu and "MFU %" in gpu and "11.95" in gpu


def test_no_name_is_cut_in_a_pipe() -> None:
    name = "garbage_collection_threshold:0.8"
    assert name in shown(row("a", 10), row(name, 10, reserved_gb=1.0), width=60, pipe=True)
