"""The page's data: what goes in comes out again, and nothing in a name can become markup."""

import base64
import gzip
import hashlib
import html
import json
import re
import struct
from typing import Any

import numpy as np
import pytest
from tests.analyze.build import RankTrace, built_run
from tests.analyze.owners.owned_folder import owned_folder
from tests.not_none import not_none
from tests.report.constructed import constructed, constructed_page

from stepscope.analysis import load as analysed
from stepscope.analyze.account import Account, account_of
from stepscope.diagnose.findings import diagnose
from stepscope.document.report import report_json
from stepscope.document.sentence import headline_sentence
from stepscope.lab.predict.calibrate import Point, calibrate
from stepscope.report.html.page import page_data, page_of
from stepscope.report.html.page_data import KINDS, Slices, Timeline, grid_of, packed
from stepscope.report.html.sheets import sheet_page
from stepscope.report.html.timeline_data import slices_of
from stepscope.report.pages.compare import comparison_sheet
from stepscope.report.pictures import calibrated_collectives
from stepscope.report.summary import summary_text

STEP = 2000
LATE_US = 500


def two_ranks(*, name: str = "gemm") -> list[RankTrace]:
    """Return ranks with 800 of compute per step and an all-reduce of 400 that rank 1 joins 500 late."""
    ranks = []
    for k in range(2):
        r = RankTrace(k, world_size=2, clock_offset_us=123.0 * k)
        r.kernel("older", at=None, start=-100, end=0)
        for n in range(3):
            t = STEP * n
            r.step(n, t - 100, t + STEP - 100)
            r.annotation("forward_pass", t - 95, t - 60)
            with r.op("aten::mm", t - 90, t - 80):
                r.kernel(name, at=t - 88, start=t, end=t + 800)
            r.collective("allreduce", at=t - 40, start=t + 800 + LATE_US * k, end=t + 1700)
            r.copy(at=t - 30, start=t + 1700, end=t + STEP)
        ranks.append(r)
    return ranks


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory) -> Account:
    return account_of(built_run(tmp_path_factory.mktemp("run"), two_ranks()))


@pytest.fixture(scope="module")
def slices(account: Account) -> Slices:
    return not_none(slices_of(account, grid_of(account)))


def time_us(slices: Slices, kind: str) -> float:
    return float(slices.dur_ns[slices.kind == KINDS.index(kind)].sum() / 1000)


def test_calibration_is_drawn_next_to_the_run(account):
    machine = calibrate([Point("all_reduce", 2, size, 10_000 + size / 4) for size in (1 << 10, 1 << 16, 1 << 22)])
    document = report_json(account, diagnose(account), details=True)
    found = calibrated_collectives(document, machine)
    assert found is not None and found.table is not None
    ((name, size, took, _, ratio),) = found.table["rows"]
    assert (name, size) == ("all reduce, 2 ranks", 4096)
    assert took == pytest.approx(0.4, rel=0.02) and ratio > 10


def test_page_is_rendered_from_the_document_alone(account):
    document = report_json(account, diagnose(account), details=True)
    data = page_data(json.loads(json.dumps(document)), Timeline())
    assert data.sentence == headline_sentence(document)
    assert {"budget", "waiting"} <= set(data.pictures)
    assert data.sentence in html.unescape(page_of(data).html)


def test_what_limits_the_numbers_is_the_same_on_page_and_terminal(account: Account) -> None:
    document = report_json(account, diagnose(account), details=True)
    document["run"] |= {"failure": "out of memory"}
    document["step"] |= {"starved": True, "core_wait_ms": 5.0}
    document["recording"] |= {"cannot_show": ["kernels"]}
    document["incomplete"] = ["rank 3 could not be read"]
    shown = page_data(document, Timeline()).report
    assert len(shown["reasons"]) == 2 and len(shown["caveats"]) == 3
    screen = " ".join(summary_text(document, width=100).split())
    assert all(line in screen for line in (*shown["reasons"], *shown["caveats"]))


def test_grid_holds_every_step_of_every_rank_in_full(account: Account) -> None:
    grid = not_none(grid_of(account))
    assert (grid.ranks, grid.steps) == ((0, 1), (0, 1, 2))
    np.testing.assert_allclose(grid.group_ns.sum(axis=0), STEP * 1000)


def test_slices_of_one_step_last_as_long_as_in_the_trace(slices):
    compute = sum(time_us(slices, kind) for kind in ("forward", "backward", "optimizer", "other"))
    assert compute == pytest.approx(2 * 800)
    assert time_us(slices, "copy") == pytest.approx(2 * 300)
    assert time_us(slices, "transfer") == pytest.approx(900 + 400)
    assert slices.span_ns == pytest.approx(STEP * 1000, abs=2000)


def test_waiting_for_the_late_rank_is_the_first_part_of_a_transfer(slices):
    comm = slices.kind == KINDS.index("transfer")
    np.testing.assert_allclose(slices.wait_ns[comm], [LATE_US * 1000, 0], atol=2000)
    assert len(set(slices.match[comm].tolist())) == 1
    assert slices.matched.last_rank.tolist() == [1]
    assert slices.matched.what == ("all_reduce · default_pg · 4.1 kB",)


def test_ranks_share_one_clock(slices):
    ends = (slices.start_ns + slices.dur_ns)[slices.kind == KINDS.index("transfer")]
    assert abs(int(ends[0] - ends[1])) < 2000


def test_packed_page_holds_report_and_columns():
    data = constructed(ranks=3, steps=4, slices_per_rank=30)
    header, columns = unpacked(packed(data))
    assert header["report"] == data.report
    assert header["grid"]["steps"] == [100, 101, 102, 103]
    slices = not_none(data.timeline.slices)
    assert unpacked_varints(columns["name"]) == slices.name.tolist()


def test_policy_allows_exactly_the_script_and_style_of_the_page():
    text = constructed_page(ranks=2, steps=2, slices_per_rank=30)
    policy = not_none(re.search(r'Content-Security-Policy" content="([^"]*)"', text))
    assert "default-src 'none'" in policy[1]
    for kind, tag in (("script-src", "script"), ("style-src", "style")):
        inline = not_none(re.search(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL))
        digest = base64.b64encode(hashlib.sha256(inline[1].encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}'" in policy[1]


def test_lines_that_training_needs_are_known_from_what_they_call(tmp_path):
    owned = account_of(owned_folder(tmp_path))
    needed = report_json(owned, diagnose(owned), details=True)["details"]["training_lines"]
    assert {"train.py:10", "train.py:11", "model.py:3"} <= set(needed)
    assert "train.py:12" not in needed


def test_the_comparison_counts_slower_and_faster_lines_in_the_order_of_its_document(tmp_path):
    runs = tmp_path / "a", tmp_path / "b"
    owned_folder(runs[0])
    owned_folder(runs[1], late_us=200.0)
    found = analysed(runs[0]).compare(analysed(runs[1])).document
    one = dict.fromkeys(("function", "source", "low", "high")) | {"a": 10.0, "b": 10.0, "what": "no difference found"}
    rows = [
        {**one, "file": "train.py", "line": 10 + k, "change": change} for k, change in enumerate((-9.0, 2.0, -0.5, 0.1))
    ]
    header, _ = unpacked(text_between(sheet_page(comparison_sheet({**found, "code": rows})), 'id="data">', "</script>"))
    (code,) = (section for section in header["report"]["sections"] if section["id"] == "code")
    assert [row[0] for row in code["table"]["rows"]] == ["train.py:10", "train.py:11", "train.py:12", "train.py:13"]
    assert "2 slower and 2 faster" in code["lines"][0]


def text_between(text: str, begin: str, end: str) -> str:
    return text.split(begin, 1)[1].split(end, 1)[0]


def unpacked(text: str) -> tuple[dict[str, Any], dict[str, bytes]]:
    body = gzip.decompress(base64.b64decode(text))
    (length,) = struct.unpack("<I", body[:4])
    header = json.loads(body[4 : 4 + length])
    rest = body[4 + length :]
    return header, {name: rest[at : at + size] for name, (at, size) in header["columns"].items()}


def unpacked_varints(data: bytes) -> list[int]:
    out, value, shift = [], 0, 0
    for byte in data:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            out.append(value)
            value = shift = 0
    return out
