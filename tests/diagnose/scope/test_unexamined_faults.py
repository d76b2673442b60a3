"""All clear is a claim: what a rule lacks is said, and one rank, or no steps, are examined as far as they go."""

import gzip
import json
from pathlib import Path

import pytest
from tests.analyze.build import AUTOGRAD, RankTrace, built_run

from stepscope.analyze.account import Account, account_of
from stepscope.diagnose.findings import Diagnosis, conclude, diagnose
from stepscope.run.load import load

STEP = 4000


def one_rank(folder: Path, *, steps: bool = True, loading: bool = False, collectives: int = 0) -> Account:
    """Return one rank of four (or of one) that computes 1.5 ms of each 4 ms, then talks or waits for input."""
    r = RankTrace(0, world_size=4 if collectives else 1)
    for n in range(6):
        t = n * STEP
        if steps:
            r.step(n, t, t + STEP)
        if loading:
            r.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", t + 5, t + 2400)
        at = t + 2410 if loading else t + 5
        with r.op("aten::mm", at, at + 40):
            r.kernel("gemm", at=at + 4, start=at + 10, end=at + 510)
        r.backward("MmBackward0", at + 50, at + 70)
        r.kernel("gemm", at=at + 55, start=at + 510, end=at + 1510, thread=AUTOGRAD)
        for k in range(collectives):
            start = at + 1510 + 20 * k
            r.collective("allreduce", at=at + 80 + 2 * k, start=start, end=start + 18, elements=64)
        r.call("cudaDeviceSynchronize", at + 80 + 2 * collectives + 4, t + STEP - 2)
    folder.mkdir(exist_ok=True)
    return account_of(built_run(folder, [r]))


def lacking(diagnosis: Diagnosis) -> dict[str, str]:
    return {n.rule: n.needs for n in diagnosis.not_examined}


def test_one_rank_of_many_is_examined_for_what_one_rank_shows(tmp_path: Path) -> None:
    account = one_rank(tmp_path, collectives=100)
    found = diagnose(account)
    assert not {f.id for f in found.findings} & {"too-many-small-collectives", "no-overlap", "communication-bound"}
    assert "4 ranks: 1 recorded" in lacking(found)["straggler"]
    assert "late rank" in lacking(found)["too-many-small-collectives"]
    assert "host-device-sync" not in lacking(found)


@pytest.mark.parametrize("steps", [True, False])
def test_waiting_for_input_is_found_with_and_without_steps(tmp_path: Path, steps: bool) -> None:
    account = one_rank(tmp_path, steps=steps, loading=True)
    first = diagnose(account).findings[0]
    assert first.id == "data-loading" and first.saving_pct == pytest.approx(60, abs=8)
    assert account.num_steps == (6 if steps else 0)


def test_a_window_without_steps_is_replayed_as_one(tmp_path: Path) -> None:
    account = one_rank(tmp_path, steps=False, loading=True)
    assert account.num_steps == 0 and account.replay is not None and account.step is not None
    assert account.replay.period_ns == pytest.approx(account.step.step_ns, rel=0.01)
    assert one_rank(tmp_path / "b", loading=True).num_steps == 6


def cut_off(folder: Path, *, share: float) -> Account:
    """Return one rank without steps whose file ends within the device's events, which come after the host's."""
    one_rank(folder, steps=False, loading=True)
    path = next(folder.glob("rank*"))
    whole = json.loads(gzip.decompress(path.read_bytes()))
    on_device = [e for e in whole["traceEvents"] if e.get("cat") == "kernel"]
    on_host = [e for e in whole["traceEvents"] if e.get("cat") != "kernel"]
    kept = sorted(on_device, key=lambda e: e["ts"])[: round(share * len(on_device))]
    text = json.dumps({**whole, "traceEvents": on_host + kept})
    path.write_bytes(gzip.compress(text[: text.rindex("}", 0, -30)].encode()))
    return account_of(load(folder, cache=False))


def test_a_trace_that_was_cut_off_is_examined_as_far_as_it_goes(tmp_path: Path) -> None:
    account = cut_off(tmp_path, share=0.7)
    assert account.run.ranks[0].trace.quality.truncated and account.num_steps == 0
    first = diagnose(account).findings[0]
    # Four of six steps have their kernels, the first without its loading: three waits of 2.4 in 13.5 ms.
    assert first.id == "data-loading" and first.saving_pct == pytest.approx(53, abs=5)
    assert account.step is not None and account.step.step_ns < 0.8 * 6 * STEP * 1000
    assert any(
        "cut off before a step was complete" in line and "the whole window counts as one step" in line
        for line in account.warnings
    )


def test_a_trace_cut_off_before_any_device_work_gets_no_verdict(tmp_path: Path) -> None:
    account = cut_off(tmp_path, share=0)
    found = diagnose(account)
    assert not found.worth and conclude(account, found).verdict == "unclear"
    assert "device of rank 0" in conclude(account, found).reason


def test_findings_over_a_window_are_told_of_the_window(tmp_path: Path) -> None:
    first = diagnose(one_rank(tmp_path, steps=False, loading=True)).findings[0]
    assert first.title == "Data loading: the job waits for input"
    assert not [e for e in first.evidence if "per step" in e.what] and any("window" in e.what for e in first.evidence)
