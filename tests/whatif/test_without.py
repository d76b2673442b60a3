"""Deleting a line from a simulated job: the replay says what the job without it takes."""

from collections.abc import Sequence

import pytest
from tests.analyze.owners.simulated import line_of, owned_run
from tests.analyze.simulate import SYNC, WAIT, Op, collective, kernel, simulate

from stepscope.analysis import Analysis
from stepscope.analyze.account import account_of
from stepscope.errors import UsageError
from stepscope.whatif.settings import Answer

STALL = Op("stall", host_us=4000)
HOST_BOUND = [kernel(10, host_us=60) for _ in range(12)]
DEVICE_BOUND = [kernel(150, host_us=20) for _ in range(12)]


def predicted_us(answer: Answer) -> float:
    return answer.prediction.step_ns / 1000


def true_us(*programs: Sequence[Op]) -> float:
    return simulate(*programs).period_us


def without(programs: Sequence[Sequence[Op]], *gone: int) -> list[list[Op]]:
    return [[op for k, op in enumerate(program) if k not in gone] for program in programs]


CASES = {
    "a kernel of a host-bound step": ([HOST_BOUND], (3,)),
    "a kernel of a device-bound step": ([DEVICE_BOUND], (3,)),
    "a synchronisation": ([[*DEVICE_BOUND, SYNC, *HOST_BOUND]], (12,)),
    "a kernel with its synchronisation": ([[*DEVICE_BOUND, kernel(500, host_us=200), SYNC, *HOST_BOUND]], (12, 13)),
    "python that does something else": ([[*DEVICE_BOUND, STALL, *HOST_BOUND]], (12,)),
    "a copy that blocks": ([[*DEVICE_BOUND, Op("copy", 20, 800), *HOST_BOUND]], (12,)),
    "a collective of two ranks": ([[*DEVICE_BOUND, collective(900), WAIT, kernel(50)]] * 2, (12, 13)),
    "small collectives": (
        [[*DEVICE_BOUND, *[collective(80, host_us=60, elements=64)] * 8, WAIT, kernel(50)]] * 2,
        tuple(range(12, 20)),
    ),
}


@pytest.mark.parametrize("what", CASES)
def test_the_step_without_a_line_is_the_step_of_the_job_without_it(tmp_path, what):
    programs, gone = CASES[what]
    run = Analysis(owned_run(tmp_path, *programs))
    answer = run.without(*(f"train.py:{line_of(k)}" for k in gone))
    before, after = true_us(*programs), true_us(*without(programs, *gone))
    assert predicted_us(answer) == pytest.approx(after, abs=0.03 * before)
    assert answer.prediction.low_ns / 1000 <= after <= answer.prediction.high_ns / 1000


def test_waiting_for_the_rank_that_has_the_line_goes_with_it(tmp_path):
    quick = [*DEVICE_BOUND, kernel(10), collective(200), WAIT, kernel(50)]
    slow = [*DEVICE_BOUND, kernel(1500), collective(200), WAIT, kernel(50)]
    run = Analysis(owned_run(tmp_path, quick, slow))
    answer = run.without(f"train.py:{line_of(12)}", ranks=[1])
    rest = [*DEVICE_BOUND, collective(200), WAIT, kernel(50)]
    assert predicted_us(answer) == pytest.approx(true_us(quick, rest), rel=0.03)
    assert true_us(quick, slow) - predicted_us(answer) > 1000  # both ranks, though one of them changed
    on_the_other = run.without(f"train.py:{line_of(12)}", ranks=[0])
    assert predicted_us(on_the_other) == pytest.approx(true_us(quick, slow), rel=0.03)


def test_collectives_stay_where_only_some_ranks_lose_a_line(tmp_path):
    program = [*DEVICE_BOUND, collective(900), WAIT, kernel(50)]
    run = Analysis(owned_run(tmp_path, program, program))
    answer = run.without(f"train.py:{line_of(12)}", ranks=[1])
    assert predicted_us(answer) == pytest.approx(true_us(program, program), rel=0.03)
    assert any("its collectives stay" in note for note in answer.notes)


def test_nothing_is_saved_twice(tmp_path):
    run = Analysis(owned_run(tmp_path, HOST_BOUND))
    once = run.without(f"train.py:{line_of(3)}")
    twice = run.without(f"train.py:{line_of(3)}", f"train.py:{line_of(3)}")
    assert twice.prediction.step_ns == pytest.approx(once.prediction.step_ns, rel=0.01)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("train.py", "write FILE:LINE"),
        ("other.py:13", "files with recorded lines are train.py"),
        ("train.py:99", "lines of that file near it: 16, 17, 18, 19, 20, 21"),
        ("module:layers.*", "no module was recorded"),
    ],
)
def test_an_owner_that_is_none_is_a_usage_error(tmp_path, given, said):
    run = Analysis(owned_run(tmp_path, HOST_BOUND))
    with pytest.raises(UsageError, match=r"train.py|module") as error:
        run.without(given)
    assert said in str(error.value)


def test_python_is_not_shortened_by_what_the_profiler_cost_the_operators(tmp_path):
    python = Op("stall", host_us=300)

    def program(host_us: float) -> list[Op]:
        return [*[kernel(5, host_us=host_us) for _ in range(12)], python]

    true, without_it = true_us(program(60)), true_us(program(60)[:-1])
    run = owned_run(tmp_path, program(90))  # the profiler stretched the operators by half, and not the Python
    analysis = Analysis(run, lambda run: account_of(run, unprofiled_ms=true / 1000))
    answer = analysis.without(f"train.py:{line_of(12)}")
    assert answer.prediction.baseline_ns / 1000 == pytest.approx(true, rel=0.03)
    assert predicted_us(answer) == pytest.approx(without_it, rel=0.03)
    operator = analysis.without(f"train.py:{line_of(3)}")
    assert true - predicted_us(operator) == pytest.approx(62, rel=0.15)


def test_a_module_is_taken_out_with_those_inside_it(tmp_path):
    program = [kernel(150, host_us=20) for _ in range(12)]
    run = owned_run(tmp_path, program, modules=["layers.0.bn", "layers.1.bn.scale", "layers.1.mlp"])
    answer = Analysis(run).without("module:layers.*.bn")
    # Module k % 3 holds thing k: two of three are gone.
    assert predicted_us(answer) == pytest.approx(true_us(program[:4]), rel=0.03)
