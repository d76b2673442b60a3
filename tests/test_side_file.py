"""Files beside the traces: only regular ones of bounded size, only numbers that can be computed with."""

import json
import os
from pathlib import Path

import pytest
from tests.source_trees import desk_calls

from stepscope.contract.run_folder import json_object_in
from stepscope.side_file import (
    MAX_BYTES,
    MAX_DEPTH,
    MAX_LINE_BYTES,
    OVERLONG,
    RefusedFile,
    parsed_json,
    read_side_file,
    side_file_lines,
    unusable_fields,
)


def test_pipe_device_and_folder_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(RefusedFile, match="instead of a regular file"):
            read_side_file(path)
        with pytest.raises(RefusedFile):
            next(side_file_lines(path))
        assert json_object_in(path) == {}


def test_sparse_file_is_refused_by_its_size(tmp_path: Path) -> None:
    with (tmp_path / "run.json").open("wb") as f:
        f.truncate(MAX_BYTES + 1)
    with pytest.raises(RefusedFile, match="where at most"):
        read_side_file(tmp_path / "run.json")


def test_file_that_does_not_tell_its_size_is_read_to_the_limit(tmp_path: Path) -> None:
    with pytest.raises(RefusedFile, match="more than 5 bytes"):
        read_side_file("/proc/self/status", max_bytes=5)


def test_link_to_a_regular_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "b").symlink_to("a")
    assert read_side_file(tmp_path / "b") == b"1"


def test_overlong_line_is_one_damaged_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"1\n" + b"x" * (3 * MAX_LINE_BYTES) + b"\n2\n")
    assert list(side_file_lines(path)) == [b"1\n", OVERLONG, b"2\n"]


@pytest.mark.parametrize(
    "text", ["1e999", "-1e999", "NaN", "Infinity", "-Infinity", "9" * 400, "-" + "9" * 5000, str(2**63), "1" + "0" * 19]
)
def test_number_that_nothing_holds_is_unknown_and_named(text: str) -> None:
    parsed = parsed_json(f'{{"good": 1, "ranks": {{"0": [{text}]}}}}')
    assert parsed.value == {"good": 1, "ranks": {"0": [None]}}
    assert unusable_fields(parsed, "run.json") == [
        "run.json: ranks.0.0 out of range or no finite number; taken as unknown"
    ]


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63), 1.5e300, 1790857026000000000, 0.1234567890123456789012])
def test_number_that_fits_stays(number: float) -> None:
    assert parsed_json(json.dumps([number])) == ([number], ())


def test_deep_nesting_is_a_value_error() -> None:
    for text in (b"[" * 200_000, b"[NaN," * 200_000):
        with pytest.raises(ValueError, match="nested"):
            parsed_json(text)


DOORS = {"side_file.py", "output_path.py", "trace/streams.py", "report/view/server.py", "run/remote.py"}
"""where files that anybody may have written are opened, each after a look at what they are"""
OWN_FILES = {"cli/exit_code.py", "cost/chips.py", "cli/demo.py", "cli/view.py", "trace/scanner/wasm.py"}
"""which open what the program itself brings or has just made"""


def test_no_file_is_opened_past_the_doors() -> None:
    found = {f"{path}:{node.lineno}" for path, called, node in desk_calls() if _opens(called)}
    assert len(desk_calls()) > 5_000
    assert not {place for place in found if place.partition(":")[0] not in DOORS | OWN_FILES}


def _opens(called: str) -> bool:
    """Return whether a call opens a file by its path; `files(...)` are the package's own."""
    return called in ("open", "os.open", "np.load", "np.fromfile") or (
        called.endswith((".read_text", ".read_bytes", ".open")) and not called.startswith("files(")
    )


def test_values_nested_too_deeply_are_no_json_whatever_python_bears() -> None:
    parsed_json("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    parsed_json("[" + ", ".join(["[1]"] * 500) + "]")
    for text in ("[" * (MAX_DEPTH + 2) + "]" * (MAX_DEPTH + 2), '{"a":' * 500 + "1e999" + "}" * 500):
        with pytest.raises(ValueError, match="nested too deeply"):
            parsed_json(text)
