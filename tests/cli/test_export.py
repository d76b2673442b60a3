"""`stepscope export` and `stepscope sql`: files appear whole, rows as CSV and JSON, errors are one line."""

import csv
import gzip
import io
import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.analyze.owners.owned_folder import owned_folder
from tests.report.trace_processor import fields

from stepscope.cli.main import main
from stepscope.document.rows import TABLES
from stepscope.tables.catalog import RunTables
from stepscope.tables.table import Table


@pytest.fixture(scope="module")
def owned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("owned")
    owned_folder(path, ranks=2)
    return path


def test_the_ending_of_the_file_chooses_its_form(late_folder: Path, tmp_path: Path) -> None:
    names = ("t.pftrace", "t.json", "t.json.gz", "t.pftrace.gz")
    for name in names:
        assert main(["export", str(late_folder), "--perfetto", str(tmp_path / name)]) == 0
    plain, text, packed_text, packed = (tmp_path / name for name in names)
    assert json.loads(text.read_bytes())["traceEvents"]
    assert gzip.decompress(packed_text.read_bytes()) == text.read_bytes()
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()


@pytest.mark.slow
def test_tables_are_one_file_each(late_folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="needs the extra `sql`")
    from pyarrow import parquet

    assert main(["export", str(late_folder), "--csv", str(tmp_path / "c"), "--parquet", str(tmp_path / "p")]) == 0
    assert {p.name for p in (tmp_path / "c").iterdir()} == {f"{name}.csv" for name in TABLES}
    steps = parquet.read_table(tmp_path / "p" / "steps.parquet")
    assert steps.num_rows == 24 and steps.schema.field("dur_ns").metadata[b"unit"] == b"ns"
    assert (tmp_path / "c" / "steps.csv").read_text().count("\n") == 25


def test_tensorboard_folder(late_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(late_folder), "--tensorboard", str(tmp_path / "tb")]) == 0
    assert len(list((tmp_path / "tb").glob("*.pt.trace.json.gz"))) == 4
    assert "5 files" in capsys.readouterr().out


FORWARD = ["train.py:9", "train.py:10", "model.py:3"]


def test_pprof_holds_stacks_with_their_planted_times(owned: Path, tmp_path: Path) -> None:
    out = tmp_path / "run.pb.gz"
    assert main(["export", str(owned), "--pprof", str(out)]) == 0
    got = list(fields(gzip.decompress(out.read_bytes())))
    texts = [value.decode() for number, value in got if number == 6]
    by_id = {number: {(m := dict(fields(v)))[1]: m for n, v in got if n == number} for number in (4, 5)}
    kinds = [texts[dict(fields(v))[1]] for n, v in got if n == 1]
    assert texts[0] == "" and kinds == ["critical_path", "device", "host"]
    samples = {}
    for sample in (list(fields(value)) for number, value in got if number == 2):
        places = [dict(fields(by_id[4][value][4])) for number, value in sample if number == 1]
        stack = tuple(f"{texts[by_id[5][place[1]][4]]}:{place[2]}" for place in places)
        labels = [{n: texts[v] for n, v in fields(value)} for number, value in sample if number == 3]
        samples[stack] = ([value for number, value in sample if number == 2], labels)
    values, labels = samples[tuple(reversed(FORWARD))]
    assert values[1:] == [150_000, 190_000] and labels == [{1: "module", 2: "blocks.0.up"}]
    assert samples["train.py:12", "train.py:9"][0][1:] == [30_000, 100_000]
    assert sum(values[2] for values, _ in samples.values()) == 1_000_000
    assert 0.9e6 < sum(values[0] for values, _ in samples.values()) <= 1_000_000  # the step is its critical path


def test_speedscope_has_lines_and_modules_by_each_time(owned: Path, tmp_path: Path) -> None:
    out = tmp_path / "run.speedscope.json"
    assert main(["export", str(owned), "--speedscope", str(out)]) == 0
    document = json.loads(out.read_bytes())
    assert document["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    frames, times = document["shared"]["frames"], {}
    for profile in document["profiles"]:
        assert profile["type"] == "sampled" and profile["unit"] == "nanoseconds" and profile["startValue"] == 0
        assert len(profile["samples"]) == len(profile["weights"]) and min(profile["weights"]) > 0
        assert sum(profile["weights"]) == profile["endValue"]
        times[profile["name"]] = {
            tuple(f"{f['file']}:{f['line']}" if "file" in f else f["name"] for f in map(frames.__getitem__, stack)): ns
            for stack, ns in zip(profile["samples"], profile["weights"], strict=True)
        }
    assert set(times) == {f"{a}, {b}" for a in ("lines", "modules") for b in ("critical path", "device", "host")}
    assert times["lines, device"][tuple(FORWARD)] == 150_000
    assert times["modules, device"] == {("blocks", "blocks.0", "blocks.0.up"): 150_000, ("(no owner)",): 30_000}


def test_profiles_need_owners(late_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(late_folder), "--pprof", str(tmp_path / "p")]) == 2
    assert "stepscope record" in capsys.readouterr().err and not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "nothing to write; give --perfetto"),
        (["--perfetto", "{new}", "--ranks", "0,x"], "are no ranks; write them as 0,3,8-15"),
        (["--perfetto", "{new}", "--ranks", "7"], "the run has no rank 7; it has 4, 0 to 3"),
        (["--perfetto", "{new}", "--steps", "8"], "write FIRST:LAST"),
        (["--perfetto", "{new}", "--steps", "900000000000:999999999999"], "the run has 0:6"),
        (["--perfetto", "{new}", "--min-us", "-1"], "is not a number above 0"),
        (["--perfetto", "{folder}"], "it is a folder"), (["--perfetto", "{file}"], "use --force"),
        (["--perfetto", "-"], "cannot go to standard output"), (["--perfetto", "{new}/t.json"], "no folder at"),
        (["--pprof", "-"], "cannot go to standard output"), (["--speedscope", "{file}"], "use --force"),
        (["--csv", "{folder}"], "is not empty"), (["--csv", "{file}"], "is a file, not a folder"),
        (["--csv", "{new}", "--tables", "steps,nothing"], "no such table in 'steps,nothing'; use some of events"),
    ],
)  # fmt: skip
def test_wrong_use_is_one_line(words, said, late_folder, tmp_path, capsys):
    (tmp_path / "file").write_text("old")
    places = {"new": tmp_path / "new", "file": tmp_path / "file", "folder": tmp_path}
    given = [word.format(**places) for word in words]
    try:
        code = main(["export", str(late_folder), *given])
    except SystemExit as ended:
        code = int(ended.code or 0)
    err = capsys.readouterr().err
    assert code == 2 and said in err and err.count("\n") == 1
    assert (tmp_path / "file").read_text() == "old" and not (tmp_path / "new").exists()


@pytest.mark.slow
@pytest.mark.parametrize("exists", [False, True])
def test_export_that_fails_leaves_no_half_filled_folder(late_folder, tmp_path, monkeypatch, exists):
    out = tmp_path / "tables"
    if exists:
        out.mkdir()
        (out / "steps.csv").write_text("old")
    made = RunTables.table

    def table(tables: RunTables, name: str) -> Table:
        return made(tables, name) if name != list(TABLES)[-1] else 1 // 0  # type: ignore[return-value]

    monkeypatch.setattr(RunTables, "table", table)
    assert main(["export", str(late_folder), "--no-cache", "--csv", str(out), "--force"]) == 2
    assert [path.read_text() for path in tmp_path.rglob("*") if path.is_file()] == ["old"] * exists
    assert out.exists() == exists and len(list(tmp_path.iterdir())) == exists
    monkeypatch.undo()
    assert main(["export", str(late_folder), "--no-cache", "--csv", str(out), "--force"]) == 0
    assert {path.name for path in out.iterdir()} == {f"{name}.csv" for name in TABLES}


needs_sql = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("duckdb", "pyarrow")), reason="needs the extra `sql`"
)
QUERY = "SELECT rank, count(*) AS calls, sum(wait_ns) / 1e6 AS wait_ms FROM collectives GROUP BY rank ORDER BY rank"


@needs_sql
def test_rows_are_printed(late_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sql", str(late_folder), QUERY]) == 0
    lines = capsys.readouterr().out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.split() == ["rank", "calls", "wait_ms"])
    assert lines[at + 2].split()[:2] == ["0", "6"] and abs(float(lines[at + 2].split()[2]) - 12) < 0.1
    assert len(lines) == at + 6


@needs_sql
def test_csv_and_json_hold_all_rows(late_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = "SELECT * FROM events"
    assert main(["sql", str(late_folder), "--csv", "-", query]) == 0
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out, newline="")))
    assert rows[0] == [c.name for c in TABLES["events"].columns]
    target = tmp_path / "rows.json"
    assert main(["sql", str(late_folder), query, "--json", str(target)]) == 0
    found = json.loads(target.read_text())
    assert found["schema"] == 1 and len(found["rows"]) == len(rows) - 1 > 100
    assert main(["sql", str(late_folder), query, "--json", str(target)]) == 2  # exists
    capsys.readouterr()
    assert main(["sql", str(late_folder), query]) == 0
    assert "the first 100 rows" in capsys.readouterr().out


@needs_sql
@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELEC rank FROM steps", "syntax error"),
        ("SELECT * FROM stepz", "does not exist"),
        ("SELECT * FROM read_text('/etc/hostname')", "disabled"),
        ("COPY steps TO '{tmp}/stolen.csv'", "disabled"),
    ],
)
def test_bad_queries_are_one_line(late_folder, tmp_path, query, said, capsys):
    assert main(["sql", str(late_folder), query.format(tmp=tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert said in err and err.count("\n") == 1 and not out and not list(tmp_path.iterdir())
