"""A sweep on the terminal: every variant is there, and hostile text stays text."""

import io
from typing import Any

import pytest
from rich.console import Console
from tests.analyze.test_sweep_verdict import TOLERANCE, row

from stepscope.analyze.sweep_verdict import sweep_verdict
from stepscope.report.sweep_text import print_sweep


def shown(*, width: int = 160, reason: str = "no memory", **sweep: Any) -> str:
    variants = [{"name": n, "tolerance": None} for n in ("slow", "quick", "large")]
    about = {
        "name": "trial", "question": "which?", "goal": "time", "reference": "first", "tolerance": TOLERANCE,
        "variants": variants, "refusals": {"large": {"what": "out_of_memory", "reason": reason}}, **sweep,
    }  # fmt: skip
    series = [row("slow", 100, flops=45e12), row("quick", 50, memory_gb=3.0, flops=45e12)]
    document = {"sweep": about, "series": series, "environment": {"device": "NVIDIA H200", "device_memory_gb": 150.0}}
    out = io.StringIO()
    print_sweep(document, sweep_verdict(document), Console(file=out, width=width))
    return out.getvalue()


def test_variants_advice_and_refusals_are_shown() -> None:
    text = shown()
    assert "large: out of memory: no memory" in text
    assert "-> use quick" in text and "MFU against 989 TFLOP/s" in text and "rounding" in text


def test_fitting_sizes_are_shown() -> None:
    found = {"largest": 96, "did_not_fit": {"128": "-", "112": "-"}, "memory_limit_bytes": 4 * 10**8}
    assert "largest batch that fits in 0.40 GB: 96; 112 does not" in shown(fitting=found)


@pytest.mark.parametrize("reason", ["[/red]", "\x1b]52;c;x\x07", "two\nlines"])
def test_reasons_steer_no_terminal(reason: str) -> None:
    text = shown(width=40, reason=reason)
    assert "\x1b" not in text and "-> use quick" in text
