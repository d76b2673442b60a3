"""JSON exports of Nsight Systems: the same account as the sqlite export they were made from."""

import gzip
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import stepscope
from stepscope.cli.main import main
from stepscope.errors import StepscopeError

EXPORT = Path(__file__).parents[2] / "data" / "nsys-small" / "export.sqlite.gz"


@pytest.fixture
def both(tmp_path: Path) -> tuple[Path, Path]:
    sqlite, lines = tmp_path / "export.sqlite", tmp_path / "export.json"
    sqlite.write_bytes(gzip.decompress(EXPORT.read_bytes()))
    db = sqlite3.connect(sqlite)
    db.row_factory = sqlite3.Row
    tables = [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    with lines.open("w") as f:
        for table in sorted(tables, reverse=True):
            for row in db.execute(f'SELECT * FROM "{table}"'):
                kept = {k: row[k] for k in row.keys() if row[k] is not None and not isinstance(row[k], bytes)}  # noqa: SIM118
                f.write(json.dumps({"table": table, **kept}) + "\n")
    db.execute("UPDATE NVTX_EVENTS SET binaryData = NULL") if "NVTX_EVENTS" in tables else None
    db.commit()
    db.close()
    return sqlite, lines


def document(path: Path) -> Any:
    found = json.loads(json.dumps(stepscope.load(path).document))
    found["run"] = {k: v for k, v in found["run"].items() if k not in ("sources", "name")}
    return found


def test_both_exports_have_one_account(both: tuple[Path, Path]) -> None:
    sqlite, lines = both
    assert document(lines) == document(sqlite)


def test_an_imported_one_is_an_export(both: tuple[Path, Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert main(["import", str(both[1]), "--into", str(run)]) == 0
    assert [p.name for p in run.glob("*nsys.sqlite")] and document(run)["ranks"]


@pytest.mark.parametrize(
    "content",
    [
        '{"data": ["a"]}\n{"Type": 80, "CudaEvent": {"startNs": "1"}}\n',
        '{"table": "StringIds", "id": 1, "value": "x"}\n' + '{"table": "a"; DROP", "x": 1}\n' * 9,
        '{"table": "StringIds", "value": "x", "id": "no"}\n{"table": "CUPTI_ACTIVITY_KIND_KERNEL", "start": [1]}\n',
        '{"table": "StringIds"}\n' + '{"table": "sqlite_master", "x": 1}\n',
        '{"table": "T", ' + ", ".join(f'"c{i}": 1' for i in range(3000)) + "}\n",
        '{"table": "CUPTI_ACTIVITY_KIND_KERNEL", "start": 1, "START": 2}\n',
    ],
)
def test_hostile_json_exports(tmp_path: Path, content: str) -> None:
    (path := tmp_path / "export.json").write_text(content)
    with pytest.raises(StepscopeError) as error:
        _ = stepscope.load(path).document
    assert "\n" not in str(error.value)
