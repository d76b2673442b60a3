"""`code` and `modules` of the report's JSON hold what was planted."""

from dataclasses import replace

import pytest
from tests.analyze.owners.owned_folder import STEP, owned_folder

from stepscope.analyze.account import account_of
from stepscope.document.report import code_document, code_json, code_view
from stepscope.errors import UsageError

KEYS = {"file", "line", "module", "device_ms", "host_ms", "comm_ms", "exposed_ms", "saving_ms"}


def test_lines_have_the_keys_of_the_contract_and_the_planted_times(tmp_path):
    found = code_json(account_of(owned_folder(tmp_path)))
    lines = {(row["file"], row["line"]): row for row in found["code"]}
    assert all(set(row) >= KEYS for row in found["code"])
    forward = lines["train.py", 10]
    assert forward["device_ms"] == pytest.approx(0.15) and forward["backward_device_ms"] == pytest.approx(0.05)
    assert forward["own_device_ms"] == 0 and lines["model.py", 3]["own_device_ms"] == pytest.approx(0.15)
    assert forward["source"] == "loss = net(x)" and forward["saving_ms"] > 0
    assert lines["model.py", 3]["module"] == "blocks.0.up"
    assert lines["train.py", 9]["is_around_step"] and lines["train.py", 9]["saving_ms"] is None
    assert lines["train.py", 9]["step_pct"] == pytest.approx(100)
    assert lines["train.py", 12]["host_ms"] >= 0.1
    modules = {row["module"]: row for row in found["modules"]}
    assert modules["blocks"]["device_ms"] == modules["blocks.0.up"]["device_ms"] == pytest.approx(0.15)
    assert found["unowned"]["device_pct"] == 0
    assert sum(row["own_host_ms"] for row in found["code"]) + found["unowned"]["host_ms"] == pytest.approx(STEP / 1000)


def test_a_run_without_owners_has_empty_lists(tmp_path):
    account = account_of(replace(owned_folder(tmp_path), owners=()))
    assert code_json(account) == {"code": [], "modules": [], "unowned": None}
    assert code_view(account) is None


def test_one_rank_has_its_own_costs_and_the_savings_of_the_job(tmp_path):
    account = account_of(owned_folder(tmp_path, ranks=2, late_us=40))
    mean, last = code_view(account), code_view(account, rank=1)
    assert mean is not None and last is not None
    device = [next(r for r in view.lines if r.owner == "train.py:10").device_ns for view in (mean, last)]
    assert device == [170_000, 190_000]
    saving = [next(r for r in view.lines if r.owner == "train.py:10").saving_ns for view in (mean, last)]
    assert saving[0] == saving[1] is not None
    assert code_document(account, last)["ranks"] == [1]
    with pytest.raises(UsageError, match="--rank 7 recorded no owners"):
        code_view(account, rank=7)


def test_modules_have_savings_where_asked_for(tmp_path):
    account = account_of(owned_folder(tmp_path))
    plain, replayed = code_view(account), code_view(account, module_savings=True)
    assert plain is not None and replayed is not None
    assert all(row.saving_ns is None for row in plain.modules)
    up = next(row for row in replayed.modules if row.module == "blocks.0.up")
    line = next(row for row in replayed.lines if row.owner == "model.py:3")
    assert up.saving_ns == line.saving_ns is not None  # the same work by two names
