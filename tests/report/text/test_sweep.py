"""A sweep on the terminal: every variant is there, and hostile text stays text."""

import io
from typing import Any

import pytest
from rich.console import Console
from tests.results.sweeps.test_verdict import TOLERANCE, row

from stepscope.report.text.bench import print_sweep
from stepscope.results.sweeps.verdict import sweep_verdict


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


@pytest.mark.parametrize("reason", ["[/red]", "\x1b]52;c;x\x07", "two\nlines"])
def test_reasons_steer_no_terminal(reason: str) -> None:
    text = shown(width=40, reason=reason)
    assert "\x1b" not in text and "-> use quick" in text
