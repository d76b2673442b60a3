"""Hostile files beside good traces: the run is reported, and what was not used of them is said."""

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.run.together import Job

from stepscope.analyze.account import account_of
from stepscope.contract.run_folder import RUN_JSON, rank_file, steps_file
from stepscope.diagnose.findings import diagnose
from stepscope.document.report import report_json
from stepscope.errors import InputError
from stepscope.run.load import Run, load
from stepscope.run.side_files import read_step_log

BEGIN_NS = 1_790_857_026_000_000_000
HUGE = "9" * 400


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Job(ranks=2, steps=3).run(tmp_path)
    return tmp_path


def reported(folder: Path) -> tuple[Run, dict[str, Any]]:
    run = load(folder, jobs=1)
    found = account_of(run)
    report = report_json(found, diagnose(found))
    json.dumps(report, allow_nan=False)
    assert report["run"]["num_ranks"] == 2
    return run, report


def line(step: int, **more: Any) -> str:
    times = {"start_ns": BEGIN_NS + step * 10**7, "end_ns": BEGIN_NS + (step + 1) * 10**7, "dur_ns": 10**7}
    return json.dumps({"step": step, **times, **more})


def fifo(path: Path) -> None:
    os.mkfifo(path)


def sparse(path: Path) -> None:
    with path.open("wb") as f:
        f.truncate(1 << 40)


@pytest.mark.parametrize("put", [fifo, sparse, Path.mkdir], ids=["fifo", "sparse", "folder"])
@pytest.mark.parametrize("what", ["telemetry.jsonl", "collectives.jsonl", "memory.jsonl", "nccl.log"])
def test_what_is_no_regular_file_beside_the_traces_is_said(
    folder: Path, what: str, put: Callable[[Path], None]
) -> None:
    put(folder / rank_file(0, what))
    run, _ = reported(folder)
    assert any(f"some files next to the traces were not read: {rank_file(0, what)}: " in w for w in run.warnings)


ODD_VALUES = (
    "5",
    "null",
    '"x"',
    "[[1], {}]",
    '{"a": 1}',
    HUGE,
    "NaN",
    "[" + "0," * 5000 + "0]",
    '"' + "A" * 10**5 + '"',
)


@pytest.mark.parametrize("value", ODD_VALUES, ids=[v[:12] for v in ODD_VALUES])
def test_fields_of_another_kind_beside_the_traces_are_unknown(folder: Path, value: str) -> None:
    fields = {
        "telemetry.jsonl": (
            ("device", ("index", "name", "uuid", "max_sm_clock_mhz", "power_limit_w")),
            ("state", ("time_ns", "step", "sm_clock_mhz", "power_w", "temperature_c", "throttle_reasons")),
            ("state", ("memory_used_bytes", "utilization_pct")),
        ),
        "collectives.jsonl": (("x", ("groups",)), ("x", ("operation", "group", "group_size", "count", "bytes"))),
        "memory.jsonl": (("snapshot", ("step", "label", "allocated_bytes")), ("peak", ("peak_bytes", "between"))),
    }
    for what, lines in fields.items():
        texts = [
            f'{{"kind": "{kind}", {", ".join(f"{json.dumps(n)}: {value}" for n in names)}}}' for kind, names in lines
        ]
        (folder / rank_file(0, what)).write_text("\n".join(texts) + "\n")
    (folder / rank_file(1, "nccl.log")).write_text(f"NCCL version {value}\nUsing network {value}\nvia {value}\n")
    _, report = reported(folder)
    assert report["devices"][0]["num_samples"] == 2
    assert len(json.dumps(report)) < 200_000, "no text of any length comes through"


def test_files_beside_the_traces_share_one_budget(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepscope.run.side_files._MAX_FOLDER_BYTES", 4000)
    monkeypatch.setattr("stepscope.run.side_files._MIN_SHARE_BYTES", 1000)
    for rank in range(2):
        for what in ("telemetry.jsonl", "memory.jsonl"):
            (folder / rank_file(rank, what)).write_text('{"kind": "state"}\n' * 100)
    run, report = reported(folder)
    assert [d["num_samples"] for d in report["devices"]] == [1000 // 18, 1000 // 18]
    assert any("only its first 1.0 kB were read" in w and "; and 1 more" in w for w in run.warnings)


@pytest.mark.parametrize("number", [HUGE, "1e999", "Infinity", "NaN", str(2**63 - 1), "-1", '"x"', "[[]]"])
def test_number_in_run_json_that_cannot_be_used_leaves_the_rest(folder: Path, number: str) -> None:
    probe = f'{{"when": "before", "at_ns": {number}, "offset_ns": {number}, "uncertainty_ns": {number}}}'
    rank = f'{{"boot_id": "a", "clock_probes": [{probe}], "flops": {{"total": {number}}}}}'
    model = f'{{"bytes": {number}, "parameters": {number}, "local_parameters": {number}}}'
    names = ("flops_per_step", "hardware_flops_per_step", "tokens_per_step", "samples_per_step", "unprofiled_step_ms")
    numbers = ", ".join(f'"{name}": {number}' for name in (*names, "world_size", "schema"))
    text = f'{{{numbers}, "strategy": "ddp", "model": {model}, "ranks": {{"0": {rank}, "1": {rank}}}}}'
    (folder / RUN_JSON).write_text(text)
    run, _ = reported(folder)
    assert run.description["strategy"] == "ddp"
    if number in (HUGE, "1e999", "Infinity", "NaN"):
        assert any(w.startswith("run.json: flops_per_step, ") for w in run.warnings)


@pytest.mark.slow
def test_one_name_per_step_takes_memory_in_proportion_to_the_log(tmp_path: Path) -> None:
    path = tmp_path / steps_file(0)
    path.write_text("\n".join(line(i, regions={"forward": {"ns": 5}, f"r{i}": {"ns": 1}}) for i in range(20_000)))
    log = read_step_log(path)
    assert sum(column.nbytes for column in log.numbers.values()) <= max(64 << 20, 8 * path.stat().st_size)
    assert log.column("regions.forward.ns").tolist() == [5.0] * 20_000
    assert log.left_out_values > 15_000


@pytest.mark.parametrize(
    "dims", ["5", "null", '{"a": 1}', '"x"', "[5]", f"[[{HUGE}, {HUGE}]]", "[[1e999]]", json.dumps("[" * 5000)]
)
def test_input_dims_that_are_none_leave_the_rest(folder: Path, dims: str) -> None:
    path = next(folder.glob("rank*0*.json.gz"))
    document = json.loads(gzip.decompress(path.read_bytes()))
    for one in document["traceEvents"]:
        one.setdefault("args", {})["Input Dims"] = "@"
    path.write_bytes(gzip.compress(json.dumps(document).replace('"@"', dims).encode()))
    reported(folder)


@pytest.mark.slow
def test_files_too_many_for_their_size_are_refused(tmp_path: Path) -> None:
    for i in range(4200):
        (tmp_path / f"worker{i}.json").write_text('{"traceEvents":[]}')
    with pytest.raises(InputError, match="4,200 files are too small"):
        load(tmp_path)


@pytest.mark.slow
def test_packed_empty_events_are_refused_in_bounded_memory(tmp_path: Path) -> None:
    """Two files of 44 kB that unpack to 15 million empty events each; a gigabyte and more without a budget."""
    code = (
        "import gzip, sys\n"
        "from pathlib import Path\n"
        "from stepscope.errors import InputError\n"
        "from stepscope.run.load import load\n"
        "try:\n"
        "    load(sys.argv[1], jobs=2)\n"
        "except InputError as error:\n"
        "    print(error)\n"
        "status = Path('/proc/self/status').read_text()\n"  # ru_maxrss would count the process that starts this one
        "print(status.partition('VmHWM:')[2].split()[0])\n"
    )
    packed = gzip.compress(b'{"traceEvents":[' + b"{}," * 15_000_000 + b"{}]}")
    for rank in range(4):
        (tmp_path / f"rank{rank}.json.gz").write_bytes(packed)
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    said, peak_kb = done.stdout.splitlines()
    assert "needs more memory than its size accounts for" in said
    assert int(peak_kb) < 1_500_000
