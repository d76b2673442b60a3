"""Every picture of a run by name; a picture that has nothing to show is missing."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from stepscope.analyze.account import Account
from stepscope.analyze.kernels.distributions import Distributions, distributions
from stepscope.analyze.ranks.rank_matrix import rank_matrix
from stepscope.analyze.step.run_steps import run_steps
from stepscope.cost.collectives.calibration import Calibration
from stepscope.diagnose.findings import Diagnosis
from stepscope.report.pictures.bandwidth import bandwidth_drawing
from stepscope.report.pictures.distributions import durations_drawing, queue_drawing
from stepscope.report.pictures.drawing import Drawing
from stepscope.report.pictures.experts import experts_drawing
from stepscope.report.pictures.memory import memory_over_run_drawing, memory_over_steps_drawing, peak_drawing
from stepscope.report.pictures.pipeline import pipeline_drawing
from stepscope.report.pictures.rank_matrix import sending_drawing, waiting_drawing
from stepscope.report.pictures.roofline import roofline_drawing
from stepscope.report.pictures.run_steps import run_steps_drawing
from stepscope.units import ms
from stepscope.whatif.switches import Switches, switches

_Found = TypeVar("_Found")
_FEW_STEPS = 4
"""fewer make no line over the run"""


def run_steps_picture(account: Account) -> Drawing | None:
    """Return step times over the whole run."""
    found = run_steps(account.run, account.run.logs)
    if found is not None and not account.run.logs and (len(found.ranks) == 1 or len(found.step) < _FEW_STEPS):
        return None  # the page's own picture of the recorded steps shows as much
    spikes = account.steadiness.spikes if account.steadiness else ()
    return None if found is None else run_steps_drawing(found, outliers=frozenset(s.step for s in spikes))


def roofline_picture(account: Account) -> Drawing | None:
    """Return kernels below the chip's roof."""
    return roofline_drawing(account.kernels.kernels, account.chip.chip)


def durations_picture(account: Account) -> Drawing | None:
    """Return how long kernels are."""
    return _of(_distributions(account), durations_drawing)


def queue_picture(account: Account) -> Drawing | None:
    """Return how much work lay queued."""
    found = _distributions(account)
    return None if found is None else queue_drawing(found, several_ranks=len(account.run.ranks) > 1)


def waiting_picture(account: Account) -> Drawing | None:
    """Return who waits for whom."""
    return _of(rank_matrix(account.shared), waiting_drawing)


def sending_picture(account: Account) -> Drawing | None:
    """Return who sends to whom."""
    return _of(rank_matrix(account.shared), sending_drawing)


def memory_picture(account: Account) -> Drawing | None:
    """Return memory over the recorded steps."""
    return _of(account.memory, memory_over_steps_drawing)


def memory_run_picture(account: Account) -> Drawing | None:
    """Return memory over the whole run."""
    return memory_over_run_drawing(account.run.logs)


def peak_picture(account: Account) -> Drawing | None:
    """Return what is alive at the peak."""
    return _of(account.memory, peak_drawing)


def experts_picture(account: Account) -> Drawing | None:
    """Return the load of each rank's experts."""
    return _of(account.views.experts, experts_drawing)


PICTURES: Mapping[str, Callable[[Account], Drawing | None]] = {
    "run_steps": run_steps_picture,
    "roofline": roofline_picture,
    "durations": durations_picture,
    "queue": queue_picture,
    "waiting": waiting_picture,
    "sending": sending_picture,
    "memory_steps": memory_picture,
    "memory_run": memory_run_picture,
    "memory_peak": peak_picture,
    "pipeline": pipeline_drawing,
    "experts": experts_picture,
}


def pictures_of(account: Account, diagnosis: Diagnosis, calibration: Calibration | None = None) -> dict[str, Any]:
    """Return what the page draws besides its own sections, as plain values."""
    drawings = {name: make(account) for name, make in PICTURES.items()}
    drawings["bandwidth"] = bandwidth_drawing(account.collectives, calibration)
    made = switches(account, diagnosis)
    return {
        **{name: drawing.as_json() for name, drawing in drawings.items() if drawing is not None},
        **({"switches": switches_json(made)} if made is not None else {}),
    }


def switches_json(made: Switches) -> dict[str, Any]:
    """Return the steps with fixes made as plain values, times in milliseconds."""
    return {
        "step_ms": ms(made.step_ns),
        "findings": list(made.findings),
        "has_pairs": made.has_pairs,
        "states": [
            {"fixes": list(s.fixes), "saving_ms": ms(s.saving_ns), "path": {k: ms(v) for k, v in s.path_ns.items()}}
            for s in made.states
        ],
    }


def _distributions(account: Account) -> Distributions | None:
    return distributions([view.costs for view in account.ranks])


def _of(found: _Found | None, draw: Callable[[_Found], Drawing | None]) -> Drawing | None:
    return None if found is None else draw(found)
