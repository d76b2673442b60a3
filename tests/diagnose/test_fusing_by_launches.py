"""Where the host limits the step fusing saves launches, and nobody knows how fast compiled code launches.

Measured on an H200: compiling a generator and its critic made their kernels 16 % shorter in all. Where one line made
the host wait for copies the compiled step was 6 % longer; fewer launches would have made it 22 % shorter.
"""

from pathlib import Path

from tests.analyze.simulate import Op, kernel, simulate
from tests.diagnose.test_rules import ADAM, BACKWARD_PASS, STEP

from stepscope.analyze.account import account_of
from stepscope.diagnose.finding import Candidate
from stepscope.diagnose.kernel_rules import memory_bound_kernels


def elementwise(device_us: float, *, host_us: float) -> Op:
    return kernel(device_us, host_us=host_us, name="vectorized_elementwise_kernel", op="aten::mul")


def candidate(folder: Path, *steps: Op) -> Candidate:
    job = simulate(steps)
    (one,) = memory_bound_kernels(account_of(job.aligned(folder).run))
    return one


def test_launches_are_not_counted_where_the_host_limits_the_step(tmp_path: Path) -> None:
    slow = [elementwise(20, host_us=150) for _ in range(20)]
    job = simulate([*slow, kernel(20, host_us=150), ADAM])
    account = account_of(job.aligned(tmp_path).run)
    (one,) = memory_bound_kernels(account)
    assert (one.doubt, one.sureness) == (1.0, 0.5)
    assert "how fast is not known" in one.cause
    assert one.change is not None and account.replay is not None
    assert account.replay.period_ns - one.change(account.replay).period_ns < 0.02 * account.replay.period_ns


def test_a_saving_on_the_device_is_as_sure_as_ever(tmp_path: Path) -> None:
    one = candidate(tmp_path, *STEP, *[elementwise(200, host_us=20) for _ in range(5)], *BACKWARD_PASS)
    assert (one.doubt, one.sureness) == (0.5, 0.7)
    assert "compiled" not in one.cause
