"""What a Python user and a notebook touch: `stepscope.load(path)` and everything that hangs on it."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepscope
from stepscope.analysis import Analysis, Comparison
from stepscope.errors import UsageError

DATA = Path(__file__).parent / "data"
HOSTILE = "<script>window.ran = 1</script><img src=x onerror=alert(1)>\x1b[31m"


@pytest.fixture(scope="module")
def run() -> Analysis:
    return stepscope.load(DATA / "gloo-ddp", cache=False)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    """A run whose folder is named by somebody who means harm."""
    run = stepscope.load(DATA / "gloo-ddp", cache=False)
    return Analysis(replace(run.run, name=HOSTILE))


def test_page_in_a_notebook_names_verdict_and_findings(run: Analysis) -> None:
    page = run._repr_html_()
    assert str(run.verdict) in page
    assert "Rank 1" in page
    assert len(page) < 10_000


def test_hostile_names_are_shown_and_never_run(hostile: Analysis) -> None:
    for text in (hostile._repr_html_(), hostile.compare(hostile)._repr_html_()):
        assert "&lt;script&gt;" in text
        assert "<script" not in text and "<img" not in text and "\x1b" not in text
    assert "\x1b" not in repr(hostile)
    assert "<script>window.ran" not in hostile.to_html()


def test_nothing_is_computed_before_it_is_asked_for_and_nothing_twice() -> None:
    asked = []
    found = stepscope.load(DATA / "gloo-ddp", cache=False)

    def make_account(run: Any) -> Any:
        asked.append(run)
        return found.account

    lazy = Analysis(found.run, make_account)
    assert "gloo-ddp: 2 ranks" in repr(lazy) and asked == []
    assert lazy.table("findings") is not None and lazy.findings and lazy.verdict
    assert asked == [found.run]


def test_account_and_diagnosis_agree_with_the_document(run: Analysis) -> None:
    assert run.account.step is not None
    assert sum(p["ms_per_step"] for p in run.document["step"]["budget"]) == pytest.approx(
        run.account.step.step_ns / 1e6
    )
    assert [f["id"] for f in run.document["findings"]] == [f.id for f in run.findings]
    assert run.document["verdict"] == run.verdict


@pytest.mark.parametrize("way", ["to_json", "to_html", "to_perfetto"])
def test_files_are_not_overwritten_unless_told(run: Analysis, tmp_path: Path, way: str) -> None:
    (path := tmp_path / "out").write_text("mine")
    with pytest.raises(UsageError, match=r"out already exists; use force=True to overwrite it"):
        getattr(run, way)(path)
    assert path.read_text() == "mine"
    getattr(run, way)(path, force=True)
    assert path.stat().st_size > 1000
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_comparison_with_itself_finds_nothing(run: Analysis, tmp_path: Path) -> None:
    same = run.compare(DATA / "gloo-ddp")
    assert isinstance(same, Comparison)
    assert same.change_pct == 0
    assert "no difference found" in repr(same)
    assert json.loads(same.to_json(tmp_path / "same.json"))["verdict"] == "no difference found"
    with pytest.raises(UsageError, match="already exists"):
        same.to_html(tmp_path / "same.json")


def test_several_files_and_one_that_cannot_be_read(tmp_path: Path) -> None:
    files = sorted((DATA / "gloo-ddp").glob("*.gz"))
    assert stepscope.load(files, cache=False).run.world_size == 2
    shutil.copy(files[0], tmp_path)
    (tmp_path / "rank1.json").write_text('{"traceEvents": [{"name": "no')
    partial = stepscope.load(tmp_path, cache=False)
    assert len(partial.run.ranks) == 1
    assert any("rank1.json" in line for line in partial.warnings)


class TestTables:
    def test_other_libraries_read_the_stream(self, run):
        pa, pl, duckdb = (pytest.importorskip(name) for name in ("pyarrow", "polars", "duckdb"))
        collectives = run.table("collectives")
        read = pa.RecordBatchReader.from_stream(collectives).read_all()
        assert read.num_rows == len(collectives)
        assert tuple(read.column_names) == collectives.columns
        assert read["dur_ns"].to_pylist() == collectives["dur_ns"].tolist()
        assert read.schema.field("dur_ns").metadata[b"unit"] == b"ns"
        for frame in (pl.DataFrame(collectives), collectives.to_polars()):
            assert frame.shape == (len(collectives), len(collectives.columns))
            assert frame["op"].to_list() == collectives["op"].tolist()
        with duckdb.connect() as database:
            database.register("c", collectives.arrow())
            found = database.sql("select rank, sum(dur_ns) from c group by rank order by rank").fetchall()
            by_stream = database.sql("select count(*) from collectives").fetchall()
        ranks = np.asarray(collectives["rank"])
        assert found == [(r, int(collectives["dur_ns"][ranks == r].sum())) for r in (0, 1)]
        assert by_stream == [(len(collectives),)]

    @pytest.mark.slow
    def test_pandas_has_every_row_and_unknown_as_missing(self, run: Analysis) -> None:
        pytest.importorskip("pyarrow")
        pytest.importorskip("pandas")
        table = run.table("collectives")
        frame = table.to_pandas()
        assert frame.shape == (len(table), len(table.columns))
        for name in table.columns:
            cells = table.cells[name]
            expected = 0 if cells.missing is None else int(cells.missing.sum())
            assert int(frame[name].isna().sum()) == expected

    def test_missing_library_is_one_sentence_with_the_remedy(self, run, monkeypatch):
        monkeypatch.setitem(__import__("sys").modules, "pandas", None)
        with pytest.raises(UsageError, match="pandas is not installed: pip install pandas"):
            run.table("steps").to_pandas()

    def test_hostile_names_in_a_cell_are_text(self, run: Analysis) -> None:
        table = run.table("events")
        cells = table.cells["name"]
        assert cells.texts is not None
        renamed = replace(cells, texts=(HOSTILE,) * len(cells.texts))
        page = replace(table, cells={**table.cells, "name": renamed})._repr_html_()
        assert "&lt;script&gt;" in page and "<script" not in page and "\x1b" not in page
        assert "rows more" in page


def test_rows_and_head_of_a_table(run: Analysis) -> None:
    table = run.table("collectives")
    rows = list(table)
    assert len(rows) == len(table) and rows[0]["op"] == "all_reduce" and set(rows[0]) == set(table.columns)
    assert list(table.head(2)) == rows[:2] and len(table.head(2)) == 2


@pytest.mark.parametrize(
    ("ask", "kind", "near"),
    [
        (lambda run: run.table("collctives"), KeyError, "did you mean collectives?"),
        (lambda run: run.table("collectives")["wait"], KeyError, "did you mean wait_ns?"),
        (lambda run: run.what_if("stragler=off"), KeyError, "did you mean straggler?"),
        (lambda run: run.what_if("straggler"), ValueError, "write straggler=off"),
        (lambda run: stepscope.load("no-such-folder"), FileNotFoundError, "does not exist"),
        (lambda run: stepscope.laod, AttributeError, "did you mean load?"),
    ],
)
def test_errors_are_built_in_ones_and_name_the_nearest(run: Analysis, ask: Any, kind: type, near: str) -> None:
    with pytest.raises(kind) as caught:
        ask(run)
    assert near in str(caught.value) and "--" not in str(caught.value)
    assert kind is AttributeError or isinstance(caught.value, stepscope.StepscopeError)


def test_answers_findings_and_pictures_are_one_line(run: Analysis) -> None:
    answer, finding = run.what_if("straggler=off"), run.findings[0]
    assert repr(answer).startswith("<Answer: straggler=off saves 6.4 of 15.7 ms per step (41 %)")
    assert answer.saving_ms == pytest.approx(finding.saving_alone_ms)
    assert finding.saving_range_ms[0] <= finding.saving_alone_ms <= finding.saving_range_ms[1]
    assert all("\n" not in repr(one) and len(repr(one)) < 240 for one in (answer, finding, run.plot_budget()))


def test_warnings_name_arguments_not_options(run: Analysis) -> None:
    assert any("unprofiled_step_ms=" in line for line in run.warnings)
    assert not any("--unprofiled" in line for line in run.warnings)


def test_public_names_are_all_there_is() -> None:
    assert dir(stepscope) == sorted(stepscope.__all__)
    assert all(getattr(stepscope, name) is not None for name in dir(stepscope) if name.endswith("Error"))
