"""What must not change the result: order of events, clocks, names of files, numbers of ranks."""

import gzip
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.run.together import Job

from stepscope.analyze.collective_costs import collective_rows, late_rank, rank_account, rank_wait
from stepscope.analyze.stragglers import find_stragglers
from stepscope.contract.run_folder import trace_file
from stepscope.run.aligned import aligned
from stepscope.run.load import load

DATA = Path(__file__).parent.parent / "data"
GLOO, DLRM = DATA / "gloo-ddp", DATA / "dlrm-8ranks"
SECOND_NS = 1_000_000_000

Document = dict[str, Any]
Change = Callable[[Path, Document, int], None]
"""Write one rank's changed document into the folder."""


def conclusions(folder: Path) -> dict[str, Any]:
    """Return what a user is told, by rank, without the clocks themselves."""
    run = load(folder, cache=False)
    shared = aligned(run)
    accounts = tuple(rank_account(r) for r in run.ranks)
    waits = [rank_wait(shared, i, a) for i, a in enumerate(accounts) if a]
    rows = collective_rows(shared, accounts)
    return {
        "accounts": [
            (a.window_ns, a.compute.total_ns, a.comm.total_ns, a.exposed_comm.total_ns, a.idle_ns)
            for a in accounts
            if a
        ],
        "matched": len(shared.matches),
        "stragglers": [(s.rank, s.cause, s.steps_late) for s in find_stragglers(shared)],
        "late": {(r.op, r.group.name): r.late_rank for r in rows},
        "late_rank": late_rank(shared),
        "bytes": sorted((r.op, r.size_bytes, r.count) for r in rows),
        "wait_ns": [w.wait_ns for w in waits],
        "transfer_ns": [w.transfer_ns for w in waits],
    }


def shuffled(folder: Path, document: Document, rank: int) -> None:
    random.Random(rank).shuffle(document["traceEvents"])
    write(folder, document, rank)


def clocks_shifted(folder: Path, document: Document, rank: int) -> None:
    shift(document, (0, 20_000_000, -10 * SECOND_NS, 3600 * SECOND_NS)[rank % 4])
    write(folder, document, rank)


def shift(document: Document, by_ns: int) -> None:
    """Set the file's clock; files without a base are in whole microseconds."""
    if "baseTimeNanoseconds" in document:
        document["baseTimeNanoseconds"] += by_ns
        return
    for e in document["traceEvents"]:
        if "ts" in e:
            e["ts"] += by_ns // 1000


def base_time_folded_in(folder: Path, document: Document, rank: int) -> None:
    """Times as older versions write them: whole, without a base."""
    base = document.pop("baseTimeNanoseconds", 0)
    for e in document["traceEvents"]:
        if "ts" in e:
            ns = base + round(e["ts"] * 1000)
            e["ts"] = f"exactly {ns // 1000}.{ns % 1000:03d}"  # more digits than a float holds
    text = re.sub(r'"exactly ([\d.]+)"', r"\1", json.dumps(document))
    (folder / trace_file(rank).removesuffix(".gz")).write_text(text)


def renamed_files(folder: Path, document: Document, rank: int) -> None:
    (folder / f"{'dcabhgfe'[rank]}.json").write_text(json.dumps(document, indent=1))


def other_thread_numbers(folder: Path, document: Document, rank: int) -> None:
    for e in document["traceEvents"]:
        if e.get("cat") in ("cpu_op", "user_annotation", "cuda_runtime"):
            e["tid"] += 5000
    write(folder, document, rank)


def split(folder: Path, document: Document, rank: int) -> None:
    """Every third event in another file; what tells that they belong together is the profiler's id of the trace."""
    events = document["traceEvents"]
    document.setdefault("trace_id", f"{rank:032X}")
    for part in range(3):
        text = json.dumps({**document, "traceEvents": events[part::3]})
        (folder / f"rank{rank}-part{part}.json").write_text(text)


def write(folder: Path, document: Document, rank: int) -> None:
    (folder / trace_file(rank)).write_bytes(gzip.compress(json.dumps(document).encode(), 1))


def documents(source: Path) -> dict[int, Document]:
    found = [json.loads(gzip.decompress(p.read_bytes())) for p in sorted(source.glob("*.json.gz"))]
    return {d["distributedInfo"]["rank"]: d for d in found}


@pytest.fixture(scope="module")
def nccl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a job with one late rank on a device, each rank's step on its host."""
    folder = tmp_path_factory.mktemp("nccl")
    job = Job(late_us=(0, 0, 2500, 0), offset_us=(0, 10, 20, 30), arrival_jitter_us=50)
    for trace in job.traces():
        for step in range(job.steps):  # the late rank's host is busy for longer
            begin, busy = step * job.step_us, 9000 if trace.rank == 2 else 5000
            trace.call("cudaStreamSynchronize", begin + busy, begin + job.step_us - 100)
        trace.write(folder)
    return folder


@pytest.fixture(scope="module", params=["nccl", "gloo", "dlrm"])
def source(request: pytest.FixtureRequest) -> Path:
    recorded = {"gloo": GLOO, "dlrm": DLRM}
    return recorded.get(request.param) or request.getfixturevalue("nccl")


def the_late_one(source: Path) -> int:
    return {GLOO: 1, DLRM: 7}.get(source, 2)


CHANGES = (shuffled, clocks_shifted, base_time_folded_in, renamed_files, other_thread_numbers, split)


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES, ids=lambda c: c.__name__)
def test_conclusions_stay(source: Path, change: Change, tmp_path: Path) -> None:
    for rank, document in documents(source).items():
        change(tmp_path, document, rank)
    before, after = conclusions(source), conclusions(tmp_path)
    for name in ("wait_ns", "transfer_ns"):
        assert np.allclose(before.pop(name), after.pop(name), rtol=1e-6, atol=2)
    assert after == before


def test_late_rank_is_found_in_the_first_place(source: Path) -> None:
    found, late = conclusions(source), the_late_one(source)
    assert found["late_rank"] == late
    if source == DLRM:  # one step of one batch: who came last is known, what a step needs is not
        assert found["late"] == {("all_to_all", "?"): 7, ("all_reduce", "?"): 4}
        return
    assert [rank for rank, _, _ in found["stragglers"]] == [late]
    assert set(found["late"].values()) == {late}


@pytest.mark.slow
@pytest.mark.parametrize("shift_ns", [20_000_000, -20_000_000, 10 * SECOND_NS])
def test_any_one_shifted_clock_changes_no_conclusion(source: Path, shift_ns: int, tmp_path: Path) -> None:
    before = conclusions(source)
    for shifted in documents(source):
        (folder := tmp_path / str(shifted)).mkdir()
        for rank, document in documents(source).items():
            shift(document, shift_ns if rank == shifted else 0)
            write(folder, document, rank)
        after = conclusions(folder)
        for name in ("wait_ns", "transfer_ns"):
            assert np.allclose(before[name], after.pop(name), rtol=1e-6, atol=2)
        assert after == {name: before[name] for name in after}


@pytest.mark.slow
def test_missing_rank_changes_nothing_for_the_others(source: Path, tmp_path: Path) -> None:
    """Another rank's file is lost, the first one's too; who is late stays."""
    before, late = conclusions(source), the_late_one(source)
    if len(documents(source)) == 2:
        pytest.skip("of two ranks one alone has nobody to wait for")
    for dropped in documents(source).keys() - {late}:
        (folder := tmp_path / str(dropped)).mkdir()
        for rank, document in documents(source).items():
            if rank != dropped:
                write(folder, document, rank)
        after = conclusions(folder)
        kept = [i for i in range(len(before["accounts"])) if i != dropped]
        assert after["late_rank"] == late
        assert [s[:2] for s in after["stragglers"]] == [s[:2] for s in before["stragglers"]]
        assert after["accounts"] == [before["accounts"][i] for i in kept]
        assert after["matched"] == before["matched"]


@pytest.mark.slow
def test_other_rank_numbers_give_the_same_of_the_renumbered_ranks(source: Path, tmp_path: Path) -> None:
    """Conclusions follow the rank, whatever number it has and wherever it stands."""
    last = max(documents(source))
    new = {rank: last - rank for rank in range(last + 1)}
    for rank, document in documents(source).items():
        document["distributedInfo"]["rank"] = new[rank]
        write(tmp_path, document, new[rank])
    before, after = conclusions(source), conclusions(tmp_path)
    assert [(new[r], cause, n) for r, cause, n in before["stragglers"]] == after["stragglers"]
    assert {key: new[r] for key, r in before["late"].items()} == after["late"]
    assert new[before["late_rank"]] == after["late_rank"]
    assert before["accounts"] == after["accounts"][::-1]
    # Clocks are relative to another rank now: the same waits within what the clocks are sure of.
    assert np.allclose(before["wait_ns"], after["wait_ns"][::-1], rtol=0.02, atol=0.01 * max(before["wait_ns"]))
