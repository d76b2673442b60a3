"""A late rank is named with the lines that it alone executes."""

from dataclasses import replace

import pytest
from tests.analyze.build import built_run
from tests.analyze.owners.planted import PlantedRank
from tests.diagnose.late import OWN_US, late_step
from tests.diagnose.matched import texts
from tests.diagnose.test_owned_findings import account, forward, sleeps

from stepscope.analyze.account import account_of
from stepscope.diagnose.findings import diagnose
from stepscope.diagnose.ranks import lone_lines
from stepscope.records import Row

EVALUATION_US = 600.0


def evaluates(r: PlantedRank, at: float, _: int) -> float:
    """A forward pass without a backward, at train.py:9: two operators with Python after each."""
    end = forward(r, at, "train.py:9", number=None)
    for begin in (at, at + EVALUATION_US / 2):
        r.python_time(begin + 100, begin + 300, "train.py:9")
    return end


def evaluates_and_more(r: PlantedRank, at: float, number: int) -> float:
    """The same, and a line that takes next to nothing."""
    end = evaluates(r, at, number)
    r.python_time(end, end + 1, "train.py:14")
    return end + 1


@pytest.mark.parametrize("runs", [evaluates, evaluates_and_more])
def test_a_late_rank_has_the_line_that_only_it_executes(tmp_path, runs):
    late = Row(
        rank=2, cause="device", late_ns_per_step=600_000.0, steps_late=4, num_steps=4, persistent=True,
        evidence={"device": 600_000.0},
    )  # fmt: skip
    found = replace(account(tmp_path, ranks=4, late={2: runs}), stragglers=(late,))
    assert len(lone_lines(found, (2,))) == (1 if runs is evaluates else 2)
    first = diagnose(found).findings[0]
    assert (first.id, first.ranks) == ("straggler", (2,))
    assert first.title == "Rank 2 runs train.py:9 alone"
    assert [(place.text, place.share) for place in first.where] == [("train.py:9", 1.0)]
    assert first.what_if == ("--set", "straggler=off")
    # Ranks drift apart here, which shrinks what the replay saves by as much as it is longer than the mean step.
    assert 0.75 * EVALUATION_US <= first.alone_ns / 1000 <= EVALUATION_US


def test_lines_of_all_ranks_are_of_nobody_alone(tmp_path):
    found = account(tmp_path, ranks=2, late={0: sleeps, 1: sleeps})
    assert lone_lines(found, (1,)) == []


def test_without_the_owners_of_all_ranks_no_line_is_known_to_be_alone(tmp_path):
    found = account(tmp_path, ranks=4, late={2: evaluates})
    assert lone_lines(found, (2,)) == [("train.py", 9)]
    (tmp_path / "fewer").mkdir()
    fewer = account(tmp_path / "fewer", ranks=4, late={2: evaluates}, owners=(0, 1, 2))
    assert lone_lines(fewer, (2,)) == []


@pytest.mark.parametrize(
    ("line", "titles"),
    [
        ("train.py:9", ["Rank 1 runs train.py:9 alone"]),
        ("train.py:10", ["Rank 1 spends 0.4 ms more in train.py:10"]),
        (None, []),
    ],
)
def test_lateness_below_the_profilers_overhead_needs_a_line(tmp_path, line, titles):
    late_us, made = 400.0, []
    last = 6 * (late_us + OWN_US)
    for rank in range(4):
        r = PlantedRank(rank, world_size=4)
        for n in range(7):
            with r.line("train.py:10"):
                late_step(r, n, late_us, late=rank == 1)
        for e in r.events:
            e["planted"] = ((line,), "") if line and e["name"] == "aten::slow" else e.get("planted")
        if line:
            r.write_owners(tmp_path, (last, last + late_us + OWN_US))
        r.events = [e for e in r.events if e["ts"] < r._local_ns(last) / 1000]
        made.append(r)
    found = account_of(built_run(tmp_path, made), unprofiled_ms=1.4)
    assert found.stragglers == (), "the profiler added 450 us to the step"
    said = [f for f in diagnose(found).findings if f.id == "straggler"]
    assert [f.title for f in said] == titles and "{" not in texts(said)
