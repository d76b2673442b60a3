"""The terminal report: one screen for every run, no number that contradicts another, readable on any terminal."""

import copy
import gzip
import io
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.analyze.build import RankTrace, built_run
from tests.analyze.simulate import SYNC, WAIT, collective, kernel, simulate
from tests.report.pages import light_run

import stepscope
from stepscope.analyze.account import account_of
from stepscope.cli.outputs import print_rendered
from stepscope.contract.names import PARTS
from stepscope.diagnose.findings import diagnose
from stepscope.document.light import light_json
from stepscope.document.report import report_json
from stepscope.report.summary import MAX_ROWS, summary_text
from stepscope.run.load import Run

Json = dict[str, Any]
DATA = Path(__file__).parents[1] / "data"
FOLDERS = ("dlrm-8ranks", "gloo-ddp", "gloo-linear", "gloo-mesh", *(f.name for f in sorted(DATA.glob("h200-*"))))
FILES = sorted(DATA.glob("foreign-*/*.json.gz"))
SAMPLES = [*(DATA / name for name in FOLDERS), *FILES, DATA / "nsys-small" / "export.sqlite.gz"]
STEP = [kernel(300), collective(500), kernel(200), WAIT, kernel(100), SYNC]
BAR = re.compile(r"   \S.*?  +([\d.,]+) +([\d.]+) %  \S+")
LINE = re.compile(r"   \S+:\d+ +([\d.,]+) ms +(\d+) %")
# a fact that a text of a finding names and nobody gave
UNFILLED = re.compile(r"{[a-z_]+}")


def document_of(run: Run) -> Json:
    account = account_of(run)
    return report_json(account, diagnose(account))


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Json:
    """Return the document of 32 ranks, of which the last is late."""
    programs = [STEP] * 31 + [[kernel(4300), *STEP[1:]]]
    return document_of(simulate(*programs, steps=2).aligned(tmp_path_factory.mktemp("late")).run)


def violations(text: str, document: Json, *, width: int = 80) -> Iterator[str]:
    """Yield what no screen may show."""
    lines = text.splitlines()
    yield from (f"unfilled: {name}" for name in UNFILLED.findall(json.dumps(document["findings"])))
    if len(lines) > MAX_ROWS:
        yield f"{len(lines)} lines"
    yield from (f"{len(line)} columns: {line}" for line in lines if len(line) > width)
    step, parts = document["step"], {f"{PARTS[row['part']]} per step": row for row in document["step"]["budget"]}
    for fact in (fact for finding in document["findings"] for fact in finding["evidence"]):
        shown = parts.get(fact["what"]) if fact["where"] in ("", "average rank") else None
        if shown and abs(fact["value"] - shown["ms_per_step"]) > 0.001:
            yield f"another size in the table: {fact['what']} {fact['value']}"
    step_ms = (step["unprofiled_ms"] or step["profiled_ms"] or 0.0) * 1.02 + 0.01
    bars = [found for line in lines if (found := BAR.fullmatch(line))]
    if (shares := sum(float(found[2]) for found in bars)) > 100.01:
        yield f"shares of {shares:.1f} %"
    if sum(float(found[1].replace(",", "")) for found in bars) > step_ms + len(bars) * 0.5 * (step_ms >= 100):
        yield "parts above the step"
    for found in filter(None, map(LINE.match, lines)):
        if float(found[1].replace(",", "")) > step_ms or int(found[2]) > 100:
            yield f"a line above the step: {found[0]}"


def assert_fits(document: Json) -> str:
    text = summary_text(document, command=["RUN"])
    assert list(violations(text, document)) == [], text
    assert "stepscope" in text.splitlines()[-1]
    verbose = summary_text(document, command=["RUN"], verbose=True)
    assert all(printed in verbose for printed in ("Notes", "Verdict"))
    for width in (40, 120):
        lines = summary_text(document, command=["RUN"], width=width, unicode=False).splitlines()
        assert max(map(len, lines)) <= width, lines
    return text


@pytest.mark.slow
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_every_sample_run_fits_one_screen(sample: Path, tmp_path: Path) -> None:
    if sample.name.endswith(".sqlite.gz"):
        whole, sample = gzip.decompress(sample.read_bytes()), tmp_path / "export.sqlite"
        sample.write_bytes(whole)
    assert_fits(stepscope.load(sample).document)


def test_step_logs_alone_show_late_ranks_and_regions() -> None:
    text = assert_fits(light_json(light_run()))
    assert "step logs only" in text and "stepscope record" in text


def test_a_rank_alone_is_not_called_punctual() -> None:
    run = light_run()
    assert light_json(run)["verdict_reason"].startswith("rank ")
    alone = light_json(replace(run, logs=run.logs[:1]))
    assert alone["verdict_reason"] == "only step times were recorded, a trace shows what a step consists of"


def test_late_rank_has_a_row_and_the_others_share_one(late: Json) -> None:
    text = assert_fits(late)
    assert "Rank 31 holds up everyone. Fixing it: " in text
    rows = text[text.index("Ranks, ms per step") :].splitlines()
    assert rows[1].split()[:2] == ["31", "◀"] and rows[1].endswith(" (device)")
    assert rows[2].split()[0] == "0-30"
    assert "waiting for rank 31" in text


def test_a_delay_has_one_size_next_to_its_saving(late: Json) -> None:
    text = assert_fits(late)
    waits = [r["budget_ms_per_step"]["wait"] for r in late["ranks"] if r["rank"] != 31]
    wait = f"{sum(waits) / len(waits):.2f}"
    assert f"other ranks wait: {wait} ms" in text
    row = next(line for line in text.splitlines() if line.strip().startswith("0-30"))
    assert wait in row.split() and "late by" not in text
    without = assert_fits({**late, "findings": [], "findings_combined": []})
    assert f"late by {late['stragglers'][0]['late_ms_per_step']:.2f} ms" in without


def crowded(document: Json) -> Json:
    """Return a document in which everything is as long as it gets."""
    out = copy.deepcopy(document)
    words = "a rather long explanation of something that " * 12
    finding = {**out["findings"][0], "title": words, "remedy": words, "saving_low_ms": 1e-9, "saving_alone_ms": 1.0}
    out["findings"] = [finding] * 7
    out["findings_combined"] = [{"ids": [finding["id"]] * (n + 1), "saving_ms_per_step": 1.0} for n in range(7)]
    out["run"] |= {"name": "n" * 300, "device": "d" * 300, "strategy": "ddp x " * 30, "asked_by": words, "window": 1}
    kind = {"kind": "k" * 90, "steps": 1, "step_ms": 1.0, "requests_per_step": 1.0, "tokens_per_step": 9e9}
    out["serving"] = {"kinds": [{**kind, "tokens_per_s": 9e9}] * 9, "generated_per_s": 9e9}
    line = {"file": "t.py", "module": "m" * 90, "critical_ms": 1.0, "saving_ms": 1.0, "trains": False, "pct": 20.0}
    out |= {"verdict_reason": words, "incomplete": [words] * 9, "warnings": [words] * 99}
    recording = {"kind": "fragment", "ranks_missing": [], "cannot_show": [words] * 3}
    return out | {"recording": recording, "costly_lines": [{**line, "line": n} for n in range(9)]}


def test_crowded_document_fits_one_screen(late: Json) -> None:
    assert_fits(crowded(late))


def test_violations_are_found_when_planted(late: Json) -> None:
    text, step_ms = summary_text(late), late["step"]["profiled_ms"]
    assert list(violations(text + "x\n" * 30, late)) == [f"{text.count(chr(10)) + 30} lines"]
    assert len(list(violations(text + "x" * 81 + "\n", late))) == 1
    assert "shares of" in next(violations(text + "   copies  0.0   72 %  █\n", late))
    assert list(violations(text + f"   copies  {step_ms:.1f}   0 %  █\n", late)) == ["parts above the step"]
    assert "a line above" in next(violations(text + f"   train.py:3  {2 * step_ms:.1f} ms   90 %\n", late))


def test_verbose_shows_all_that_the_screen_leaves_out(late: Json) -> None:
    text = summary_text({**late, "warnings": ["first note", "second note"]}, command=["my run"], verbose=True)
    for finding in late["findings"]:
        assert finding["id"] in text and " ".join(finding["remedy"].split()) in " ".join(text.split())
    assert "first note" in text and "second note" in text
    assert "stepscope whatif 'my run' --set straggler=off" in text
    assert all(re.search(rf"^ *{rank} ", text, re.MULTILINE) for rank in range(32))


def number(text: str) -> float:
    return float(text.replace(",", ""))


@pytest.mark.parametrize("shares", [(36.9, 35.7, 23.3, 3.4, 0.7), (33.6, 33.6, 32.8), (19.67,) * 5, (50, 17, 17, 16)])
def test_shares_are_right_to_the_digit(late: Json, shares: tuple[float, ...]) -> None:
    parts = ("wait", "host_stall", "exposed_transfer", "allocator", "data_loading", "copy")
    rows = [{"part": part, "ms_per_step": share, "pct": share} for part, share in zip(parts, shares, strict=False)]
    step = {**late["step"], "profiled_ms": 100.0, "unprofiled_ms": None, "budget": rows, "unmatched_comm_ms": 0.0}
    text = assert_fits({**late, "step": step, "idle": [], "findings": [], "findings_combined": []})
    shown = [found[2] for line in text.splitlines() if (found := BAR.fullmatch(line))]
    assert len(shown) == len(shares)
    for one, share in zip(shown, shares, strict=True):
        assert abs(float(one) - share) <= (0.1 if "." in one else 0.5)


@pytest.mark.parametrize("step_ms", [1234.5, 251.15, 100.36, 58.63, 9.97, 3.661])
def test_shown_times_add_up(late: Json, step_ms: float) -> None:
    for share in (0.2, 0.333, 0.5, 0.657, 0.951, 0.987):
        saving = share * step_ms
        numbers = {"saving_alone_ms": saving, "saving_low_ms": 0.8 * saving, "saving_high_ms": 1.1 * saving}
        finding = {**late["findings"][0], **numbers, "saving_pct": 100 * share}
        step = {**late["step"], "profiled_ms": step_ms, "unprofiled_ms": None, "budget": []}
        text = summary_text({**late, "step": step, "findings": [finding], "findings_combined": []})
        before, after = re.findall(r"([\d.,]+) → ([\d.,]+) ms per step \(−\d+ %\)", text)[0]  # noqa: RUF001
        (saved,) = re.findall(r"  −([\d.,]+) ms  likely", text)  # noqa: RUF001
        assert number(before) - number(after) == pytest.approx(number(saved), abs=1e-9)


def test_no_findings_name_what_was_examined(late: Json) -> None:
    text = assert_fits({**late, "findings": [], "findings_combined": [], "stragglers": []})
    assert (
        "Examined, nothing to fix: data-loading" in text
        and "Not examined (-v: why): " in text
        and "memory-pressure" in text
    )


def test_output_without_unicode_or_colour_is_readable(late: Json, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    monkeypatch.setenv("COLUMNS", "80")
    print_rendered(lambda **how: summary_text({**late, "run": {**late["run"], "name": "läuft"}}, **how))
    sys.stdout.flush()
    text = raw.getvalue().decode("ascii")
    assert text.startswith("l?uft - 32 x ") and "#" in text and " -> " in text and "\x1b" not in text
    assert not list(violations(text, late))


def test_colours_are_codes_around_the_same_text(late: Json) -> None:
    coloured = summary_text(late, colour=True)
    assert "\x1b[1m" in coloured
    assert re.sub(r"\x1b\[\d+m", "", coloured) == summary_text(late)


def test_rank_without_steps_is_named(tmp_path: Path) -> None:
    empty = RankTrace(1, world_size=2)
    empty.python("main.py(1): main", 0, 10)
    document = document_of(built_run(tmp_path, [*simulate(STEP, STEP, steps=2).traces[:1], empty]))
    assert "1: no step was recorded" in summary_text(document, verbose=True)
