"""Two constructed runs whose difference is known, also by source line."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.analyze.owners.owned_folder import owned_folder
from tests.diagnose.late import OWN_US, late_run

from stepscope.analysis import load as analysed
from stepscope.analyze.account import account_of
from stepscope.compare.runs import Comparison, changed_rows, compare, rows_of
from stepscope.compare.samples import PerStepTimes, RunSamples, run_samples

LATE_US = 2000.0
RANKS = 4


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> RunSamples:
    return run_samples(account_of(late_run(tmp_path_factory.mktemp("late"), late_us=LATE_US, ranks=RANKS)))


@pytest.fixture(scope="module")
def prompt(tmp_path_factory: pytest.TempPathFactory) -> RunSamples:
    return run_samples(account_of(late_run(tmp_path_factory.mktemp("prompt"), late_us=0, ranks=RANKS)))


@pytest.fixture(scope="module")
def found(prompt: RunSamples, late: RunSamples) -> Comparison:
    return compare([prompt], [late])


def change_ms(found: Comparison, part: str) -> float:
    return next((row.difference.change for row in found.budget if row.name == part), 0.0)


def test_step_of_a_late_rank_is_longer_by_what_it_is_late(found: Comparison) -> None:
    assert found.step.basis == "profiled"
    assert found.step.difference.a == pytest.approx(OWN_US / 1000, abs=0.01)
    assert found.step.difference.change == pytest.approx(LATE_US / 1000, abs=0.01)
    assert found.step.difference.significant


def test_budget_says_where_the_difference_went_and_sums_to_it(found: Comparison) -> None:
    assert change_ms(found, "wait") == pytest.approx(3 / 4 * LATE_US / 1000, rel=0.05)
    assert sum(row.difference.change for row in found.budget) == pytest.approx(found.step.difference.change, rel=1e-3)
    assert next(row for row in found.budget if row.name == "wait").what == "appeared"
    assert all(row.what == "no difference found" for row in found.budget if row.name in ("forward", "backward"))


def test_only_the_waiting_kernel_differs_and_what_the_late_host_ran_is_new(found: Comparison) -> None:
    assert [row.name.split("_")[0] for row in found.kernels] == ["ncclDevKernel"]
    assert found.kernels[0].what == "slower"
    assert found.kernels[0].difference.change == pytest.approx(3 / 4 * LATE_US / 1000, rel=0.05)


def table(rng: np.random.Generator, steps: int = 40, **means: float) -> PerStepTimes:
    names = tuple(means)
    ms = np.array([means[n] for n in names]) * (1 + 0.05 * rng.standard_normal((steps, len(names))))
    return PerStepTimes(names, ms, np.ones_like(ms))


def test_rows_that_appear_vanish_and_slow_down_are_told_from_chance() -> None:
    rng = np.random.default_rng(2)
    equal: dict[str, Any] = {f"kernel{i}": 1.0 for i in range(60)}
    a = table(rng, **equal, slow=1.0, old=0.5)
    b = table(rng, **equal, slow=1.2, new=0.7)
    rows = {row.name: row for row in rows_of([a], [b])}
    assert (rows["slow"].what, rows["new"].what, rows["old"].what) == ("slower", "appeared", "vanished")
    assert sum(rows[name].significant for name in equal) == 0
    assert changed_rows([a], [b])[0].name == "new"


SLOWER_US = 700.0


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    both = tmp_path_factory.mktemp("a"), tmp_path_factory.mktemp("b")
    owned_folder(both[0])
    owned_folder(both[1], late_us=SLOWER_US)
    return both


def test_the_line_that_got_slower_comes_first(folders: tuple[Path, Path]) -> None:
    a, b = map(analysed, folders)
    document = a.compare(b).document
    first = document["code"][0]
    assert (first["file"], first["line"], first["source"]) == ("model.py", 3, "return self.up(x)")
    assert first["change"] > 0
    assert sum(row["b"] for row in document["code"]) <= document["step_ms"]["b"] * 1.001
    assert first["what"] == "" and first["reason"] == "no interval: one run per side"
    assert document["code_changed"] == len(document["code"])


def test_page_has_lanes_of_both_sides(folders: tuple[Path, Path]) -> None:
    from stepscope.report.html.compare import side_by_side

    a, b = map(analysed, folders)
    (drawing,) = side_by_side((a.account, a.diagnosis), (b.account, b.diagnosis))
    assert drawing.title == "Rank 0, the first rank"
    took = [
        float(shape["tip"][1].removesuffix(" µs")) for shape in drawing.shapes if shape.get("tip", [""])[0] == "gemm"
    ]
    assert took[1] - took[0] == pytest.approx(SLOWER_US, rel=0.05)
    assert a.compare(b).to_html().startswith("<!doctype html>")
