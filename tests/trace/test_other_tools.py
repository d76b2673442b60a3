"""Traces of other tools: read where they hold device work, else refused with the tool's name and what they hold."""

import json
from typing import Any

import pytest

import stepscope
from stepscope.errors import InputError
from stepscope.trace.read import read
from stepscope.trace.table import EventKind, event_kinds


def process(pid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}


def timed(count: int, name: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"ph": "X", "name": name, "pid": 1, "tid": 0, "ts": 10 * k, "dur": 5, **fields} for k in range(count)]


TENSORFLOW = [
    process(1, "/job:localhost/replica:0/task:0/device:GPU:0 Compute"),
    process(2, "/device:GPU:0/stream:all Compute"),
    *timed(5, "Conv2D", cat="Op"),
    *timed(7, "MatMul", cat="Op", pid=2),
]
BEGIN_AND_END = [{"ph": ph, "name": "add_11 Cmpt Exec", "pid": 0, "tid": 1, "ts": k} for k in range(4) for ph in "BE"]


@pytest.mark.parametrize(
    ("events", "said"),
    [
        (
            TENSORFLOW,
            r"^unsupported format: .* is a TensorFlow 1.x timeline: 12 events \(categories: 12 Op; processes: "
            r"7 /device:GPU:0/stream:all Compute, 5 /job:localhost/replica:0/task:0/device:GPU:0 Compute\); record",
        ),
        (BEGIN_AND_END, r"IBM's AIU.*: 4 events in begin and end pairs, .* \(names: 4 add_11 Cmpt Exec\)"),
        (timed(3, "RunTask", cat="toplevel"), r"the Chrome browser: 3 events \(categories: 3 toplevel\)"),
        (timed(3, "aten::add", pid="CPU functions"), r"from before Kineto.*3 events \(processes: 3 CPU f"),
        (timed(3, "aten::add"), r"from before Kineto.*3 events \(names: 3 aten::add\)"),
        (
            [*timed(9, "Executing ops:"), *(e for n in "abcd" for e in timed(1, n))],
            r"^nothing to analyse in .*: 13 events \(names: 9 Executing ops:, 1 a, 1 b and 2 more\), none of",
        ),
        ([process(1, "python")], r"nothing to analyse in .*: no event has a duration; record"),
    ],
)  # fmt: skip
def test_what_a_file_without_readable_work_holds(tmp_path, events, said):
    (path := tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events}))
    with pytest.raises(InputError, match=said) as error:
        _ = stepscope.load(path).document
    assert "\n" not in str(error.value)


def test_kernels_copies_and_calls_of_rocprof(tmp_path):
    def row(pid: int, name: str, start_us: int, us: int) -> dict[str, Any]:
        return {"ph": "X", "name": name, "pid": str(pid), "tid": "0", "ts": str(start_us), "dur": str(us), "args": {}}

    events = [
        {},
        *(process(pid, name) for pid, name in ((3, "CPU HSA API"), (1, "COPY"), (6, "GPU0"))),
        *(e for k in range(50) for e in (row(3, "hsa_dispatch", 1_000 * k, 2), row(6, "mm.kd", 1_000 * k + 40, 800))),
        row(1, "CopyHostToDevice", 900, 60),
    ]
    (path := tmp_path / "results.json").write_text(json.dumps({"traceEvents": events}))
    trace = read(path)
    kinds = event_kinds(trace)
    expected = {EventKind.KERNEL: 50 * 800_000, EventKind.RUNTIME: 50 * 2_000, EventKind.COPY: 60_000}
    assert {kind: int(trace["dur_ns"][kinds == kind].sum()) for kind in expected} == expected
    assert trace.quality.bad_time == 0
    document = stepscope.load(path).document
    assert document["kernels"][0]["name"] == "mm.kd"
