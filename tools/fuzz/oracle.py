"""Is what a command did with a hostile input within the contract? Each complaint is one line; none is a pass."""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

from tools.fuzz.case import Case
from tools.fuzz.seeds import MARKUP

MAX_SECONDS = 20
MAX_PEAK_BYTES = 1_000_000_000
MAX_INPUT_BYTES = 50_000_000
_GATED = ("compare", "health", "demo")
_TRACEBACK = re.compile(r"Traceback \(most recent call last\)|^\w*(Error|Exception): ", re.MULTILINE)
_NAMED = re.compile(r"[\w.]+(Error|Exception|Interrupt|Warning)(:|$)")
_FRAME = re.compile(r'File "(?:[^"]*/)?(stepscope/[^"]*)", line (\d+)')
STARTS_NO_JOBS = "the fuzzer starts no jobs"
"""said where a command was about to; the lines of progress before it are no fault of the command's"""
UNFORESEEN = "please report it"
"""in the one line for an error that no command foresaw"""


@dataclass(frozen=True)
class Outcome:
    """What one command did."""

    exit_code: int | None
    """None where it did not end by itself"""
    stdout: str = ""
    stderr: str = ""
    raised: str = ""
    """traceback of what left `main`"""
    ended_by: str = ""
    """signal, hang or memory"""
    peak_bytes: int = 0
    input_bytes: int = 0
    took_s: float = 0.0
    worked_s: float = 0.0
    """processor time, which says more on a busy machine; 0 where it ran in a process of its own"""
    written: dict[str, str] = field(default_factory=dict)
    """text of what it wrote"""
    unforeseen: str = ""
    """where an error came from that only the last resort turned into one sentence: no failure, but worth a look"""
    changed: tuple[str, ...] = ()
    """files that were there and are no longer as they were, or were left behind"""


def complaints(case: Case, outcome: Outcome) -> list[str]:
    """Return what is wrong, each line beginning with a kind that can be counted."""
    if outcome.ended_by:
        return [outcome.ended_by]
    found = [*_ending(case, outcome), *(f"file {name}" for name in outcome.changed)]
    if outcome.peak_bytes > MAX_PEAK_BYTES and outcome.input_bytes < MAX_INPUT_BYTES:
        found.append(f"memory {outcome.peak_bytes / 1e9:.1f} GB for {outcome.input_bytes} bytes")
    found += _terminal(case, outcome)
    if outcome.exit_code in (0, 1, 3):
        found += [line for text in _documents(case, outcome) for line in json_complaints(text)]
        pages = [text for name, text in outcome.written.items() if name.endswith((".html", ".svg"))]
        if any("<script>fuzzed" in text or "<img src=x" in text for text in pages):
            found.append("script in a page")
    return [*found, *_expected(case, outcome)]


def _expected(case: Case, outcome: Outcome) -> list[str]:
    """Return what this input in particular asks for and did not get."""
    found = []
    if outcome.exit_code not in case.expect.get("exit_code", [outcome.exit_code]):
        found.append(f"exit code {outcome.exit_code} where {case.expect['exit_code']} is expected")
    if not re.search(case.expect.get("says", ""), outcome.stdout + outcome.stderr):
        found.append(f"not said: {case.expect['says']}")
    return found


def _ending(case: Case, outcome: Outcome) -> list[str]:
    if outcome.raised:
        return [f"traceback {place_of(outcome.raised)}"]
    found = []
    if outcome.exit_code not in (0, 2, 3) and not (outcome.exit_code == 1 and case.argv[0] in _GATED):
        found.append(f"exit code {outcome.exit_code}")
    if _TRACEBACK.search(outcome.stderr):
        found.append(f"traceback {place_of(outcome.stderr)}")
    lines = outcome.stderr.strip("\n").count("\n") + 1 if outcome.stderr.strip() else 0
    if outcome.exit_code == 2 and lines != 1 and STARTS_NO_JOBS not in outcome.stderr:
        found.append(f"{lines} lines on stderr with exit code 2")
    return found


def place_of(traceback: str) -> str:
    """Return the exception and the last line of ours that it passed: what tells one bug from another."""
    names = [line.split(":")[0] for line in traceback.splitlines() if _NAMED.match(line)]
    frames = _FRAME.findall(traceback)
    return f"{names[-1] if names else '?'} at {':'.join(frames[-1]) if frames else '?'}"


def _terminal(case: Case, outcome: Outcome) -> list[str]:
    if "--csv" in case.argv:  # data, as it is
        return []
    printed = outcome.stdout + outcome.stderr
    found = ["escape sequence in the output"] if "\x1b" in printed else []
    if "fuzzmark" in printed and MARKUP[:14] not in printed:
        found.append("markup in a name was read as markup")
    return found


def _documents(case: Case, outcome: Outcome) -> list[str]:
    """Return the JSON texts that the command was asked for."""
    to_stdout = any(a == "--json" and b == "-" for a, b in zip(case.argv, case.argv[1:], strict=False))
    named = () if "--csv" in case.argv else outcome.written.items()  # a table may have any name
    others = {b for a, b in zip(case.argv, case.argv[1:], strict=False) if a in _NO_JSON}
    written = [text for name, text in named if name.endswith(".json") and name not in others]
    return [*([outcome.stdout] if to_stdout and case.stdout == "file" else []), *written]


_NO_JSON = ("--html", "--perfetto", "--plot")
"""whose output is no JSON, whatever its name"""


def json_complaints(text: str) -> list[str]:
    """Return what is wrong with a JSON text of ours."""

    def refuse(name: str) -> float:
        raise ValueError(f"bare {name}")

    try:
        document = json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        return [f"json {str(error)[:40]}"]
    if not isinstance(document, dict):
        return ["json of another kind than an object"] if not isinstance(document, list) else []
    found = document.get("contradictions")
    told = [f"contradiction of {one['check']}" for one in found] if isinstance(found, list) else []
    return [*_sums(document), *_impossible(document), *told, *_prediction(document)]


def _prediction(document: dict[str, Any]) -> list[str]:
    """Return whether a what-if's step is not the measured one less the saving."""
    keys = [document.get(key) for key in ("predicted_ms", "measured_ms", "saving_ms")]
    if not all(isinstance(value, int | float) for value in keys):
        return []
    predicted, measured, saving = (float(cast(float, value)) for value in keys)
    wrong = not math.isclose(predicted, measured - saving, rel_tol=1e-6, abs_tol=1e-3 + 1e-6 * abs(measured))
    return ["prediction is not the measured step less the saving"] if wrong else []


def _sums(document: dict[str, Any]) -> list[str]:
    step, waterfall = document.get("step"), document.get("waterfall")
    found = []
    if isinstance(step, dict) and step.get("budget"):
        total = sum(part["ms_per_step"] for part in step["budget"])
        whole = step["unprofiled_ms"] if step["unprofiled_ms"] is not None else step["profiled_ms"]
        if whole is not None and not math.isclose(total, whole, rel_tol=0.005, abs_tol=0.02):
            found.append("budget does not sum to the step")
    if isinstance(waterfall, list) and waterfall and "pct_of_peak" in waterfall[0]:
        total = sum(row["pct_of_peak"] for row in waterfall)
        if not math.isclose(total, 100, abs_tol=0.5):
            found.append("waterfall does not sum to 100")
    return found


def _impossible(document: dict[str, Any]) -> list[str]:
    """Return the durations of a report below 0, and its shares beyond 0 and 100 %."""
    if not isinstance(document.get("step"), dict) or "findings" not in document:
        return []
    found = set()
    for name, value in _numbers(document):
        is_time = name.endswith("_ms") and name != _SIGNED
        if (value < 0 and (is_time or name in _SHARES)) or (value > 100.001 and name in _SHARES):
            found.add(f"{name} is {value:.3g}"[:40])
    return sorted(found)


_SIGNED = "profiler_correction_ms"
_SHARES = ("occupancy_pct", "sm_pct", "memory_pct", "dram_pct", "tensor_pct", "pct")


def _numbers(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _numbers(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from _numbers(inner, name)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, value
