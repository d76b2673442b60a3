"""Where the host limits the step fusing saves launches, and nobody knows how fast compiled code launches."""

from pathlib import Path

from tests.analyze.simulate import Op, kernel, simulate
from tests.diagnose.test_rules import ADAM, BACKWARD_PASS, STEP

from stepscope.analyze.account import account_of
from stepscope.diagnose.finding import Candidate
from stepscope.diagnose.rules.memory_bound_kernels import memory_bound_kernels


def elementwise(device_us: float, *, host_us: float) -> Op:
    return kernel(device_us, host_us=host_us, name="vectorized_elementwise_kernel", op="aten::mul")


def candidate(folder: Path, *steps: Op) -> Candidate:
    job = simulate(steps)
    (one,) = memory_bound_kernels(account_of(job.aligned(folder).run))
    return one


def test_a_saving_of_launches_may_be_nothing(tmp_path: Path) -> None:
    slow = [elementwise(20, host_us=150) for _ in range(20)]
    one = candidate(tmp_path, *slow, kernel(20, host_us=150), ADAM)
    assert (one.doubt, one.sureness) == (1.0, 0.5)
    assert "how fast compiled code launches is not known" in one.cause


def test_a_saving_on_the_device_is_as_sure_as_ever(tmp_path: Path) -> None:
    one = candidate(tmp_path, *STEP, *[elementwise(200, host_us=20) for _ in range(5)], *BACKWARD_PASS)
    assert (one.doubt, one.sureness) == (0.5, 0.7)
    assert "compiled" not in one.cause
