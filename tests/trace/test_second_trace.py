"""Several traces in one file are refused with how to split them; what only looks like several is read."""

import io
import json
import subprocess
import tarfile
import zipfile

import pytest
from tests.run.traces import event

from stepscope.errors import TraceError
from stepscope.trace.read import read


def text_of(rank: int, count: int = 40) -> str:
    events = [event("kernel", f"k{i}", 10 * i, 5) for i in range(count)]
    devices = [{"id": 0, "name": "a"}, {"id": 1, "name": "b"}]
    header = {"schemaVersion": 1, "deviceProperties": devices, "distributedInfo": {"rank": rank}}
    return json.dumps({**header, "traceEvents": events, "traceName": "x.json"}, indent=1)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "threads"), [(3, 1), (40, 3), (20_000, 3)])
def test_two_traces_in_one_file_are_refused_with_a_command_that_splits_them(tmp_path, count, threads):
    (path := tmp_path / "both.json").write_text(text_of(0, count) + "\n" + text_of(1, count))
    with pytest.raises(TraceError, match="several traces one after the other") as raised:
        read(path, threads=threads)
    subprocess.run(str(raised.value).partition("split them: ")[2], shell=True, cwd=tmp_path, check=True)
    assert read(tmp_path / "first.json").header["distributedInfo"] == {"rank": 0}
    assert read(tmp_path / "second.json").header["distributedInfo"] == {"rank": 1}


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_archive_that_leads_outside_is_refused_and_nothing_is_unpacked(tmp_path, kind):
    (inside := tmp_path / "inside").mkdir()
    path, names = inside / "ranks.json", ["../canary", str(tmp_path / "canary"), "a/../../canary"]
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name in names:
                archive.writestr(name, text_of(0))
    else:
        with tarfile.open(path, "w") as tar:
            for name in names:
                info = tarfile.TarInfo(name)
                info.size = len(text_of(0))
                tar.addfile(info, io.BytesIO(text_of(0).encode()))
            link = tarfile.TarInfo("link")
            link.type, link.linkname = tarfile.SYMTYPE, "../canary"
            tar.addfile(link)
    with pytest.raises(TraceError, match=f"{kind} archive"):
        read(path)
    assert [p.name for p in tmp_path.iterdir()] == ["inside"] and [p.name for p in inside.iterdir()] == ["ranks.json"]
