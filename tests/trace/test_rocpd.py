"""rocpd databases: the same account as Kineto's JSON of the same kernels, copies, calls and ranges."""

import gzip
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tests.trace.rocpd_files import GUID, KINDS, rocpd

import stepscope
from stepscope.errors import TraceError
from stepscope.trace.rocpd import read_rocpd

RUN = Path(__file__).parents[1] / "data" / "h200-hsdp"


def window(rank: int) -> dict[str, Any]:
    with gzip.open(RUN / f"rank{rank}.json.gz") as f:
        document = json.load(f)
    events = [e for e in document["traceEvents"] if e["ph"] == "X" and e.get("cat") in KINDS]
    for event in events:
        args = event.get("args") or {}
        event["args"] = {k: args[k] for k in ("correlation", "device", "stream", "grid", "block", "bytes") if k in args}
        if event["cat"] == "cuda_runtime":
            event.update(cat="hip_runtime", name=event["name"].replace("cuda", "hip"))
        if event["cat"] == "gpu_memcpy":
            event["name"] = " ".join(event["name"].split()[:2])
    return {"baseTimeNanoseconds": document.get("baseTimeNanoseconds", 0), "traceEvents": events}


def test_a_window_has_one_account_in_both_formats(tmp_path: Path) -> None:
    documents = {}
    for kind in ("json", "db"):
        (folder := tmp_path / kind).mkdir()
        for rank in range(4):
            if kind == "json":
                (folder / f"rank{rank}.json").write_text(json.dumps(window(rank)))
            else:
                with gzip.open(RUN / f"rank{rank}.json.gz") as f:
                    rocpd(json.load(f), folder / f"rank{rank}_results.db")
        document = json.loads(json.dumps(stepscope.load(folder).document))
        document["run"] = {k: v for k, v in document["run"].items() if k not in ("sources", "name")}
        documents[kind] = document
    assert documents["db"] == documents["json"]


@pytest.mark.parametrize(
    ("statements", "said"),
    [
        (f"DROP TABLE rocpd_kernel_dispatch{GUID}", "no export of Nsight Systems|holds no kernel"),
        (f"UPDATE rocpd_kernel_dispatch{GUID} SET start = 'x', end = NULL", None),
        (f"UPDATE rocpd_event{GUID} SET stack_id = {1 << 62}, extdata = x'ff'", None),
        (f"DELETE FROM rocpd_string{GUID}; DELETE FROM rocpd_info_agent{GUID}", None),
        (f"UPDATE rocpd_kernel_dispatch{GUID} SET end = start - 5, grid_size_x = -{1 << 62}", None),
        (
            f"ALTER TABLE rocpd_region{GUID} RENAME TO other; CREATE VIEW rocpd_region{GUID} AS SELECT * FROM other",
            "is a view where an export has a table",
        ),
    ],
)
def test_damaged_databases(tmp_path: Path, statements: str, said: str | None) -> None:
    path = tmp_path / "rank0_results.db"
    with gzip.open(RUN / "rank0.json.gz") as f:
        rocpd(json.load(f), path)
    with sqlite3.connect(path) as db:
        db.executescript(statements)
    if said:
        with pytest.raises(TraceError, match=said):
            read_rocpd(path)
    else:
        assert read_rocpd(path)[0].num_events
