"""The report's pictures one by one, for notebooks: `run.plot_timeline()` in a cell shows it.

Each is a `Drawing`, which Jupyter shows as SVG. What a run cannot show is an `InputError` that says what is missing.
"""

from typing import Protocol

from stepscope.analyze.account import Account
from stepscope.diagnose.findings import Diagnosis
from stepscope.errors import InputError, UsageError
from stepscope.report.html.grid import grid_of
from stepscope.report.html.one_step import slices_of
from stepscope.report.pictures import all_pictures as made
from stepscope.report.pictures.bandwidth import bandwidth_drawing
from stepscope.report.pictures.code import icicle_drawing
from stepscope.report.pictures.drawing import Drawing
from stepscope.report.pictures.pipeline import pipeline_drawing
from stepscope.report.pictures.step import budget_drawing, waterfall_drawing, what_if_drawing
from stepscope.report.pictures.timeline import timeline_drawing
from stepscope.whatif.switches import switches


class _Analysis(Protocol):
    @property
    def account(self) -> Account: ...

    @property
    def diagnosis(self) -> Diagnosis: ...


class Plots:
    """What an analysis can be seen as."""

    def plot_timeline(self: _Analysis, step: int | None = None) -> Drawing:
        """Return one step over all ranks, the typical one unless another is given."""
        grid = grid_of(self.account)
        if step is not None and (grid is None or step not in grid.steps):
            known = "none" if grid is None else ", ".join(map(str, grid.steps[:20]))
            raise UsageError(f"step {step} was not recorded; recorded: {known}")
        slices = slices_of(self.account, grid, step=step)
        return _there(timeline_drawing(slices) if slices else None, "nothing ran in a recorded step")

    def plot_steps(self: _Analysis) -> Drawing:
        """Return the time of every step of the run on every rank."""
        return _there(made.run_steps_picture(self.account), "fewer than two steps are known of more than one rank")

    def plot_budget(self: _Analysis) -> Drawing:
        """Return where the step goes."""
        return _there(budget_drawing(self.account.step) if self.account.step else None, "no step was recorded")

    def plot_waterfall(self: _Analysis) -> Drawing:
        """Return the way from the chip's peak to the achieved FLOP rate."""
        return _there(waterfall_drawing(self.account.waterfall), "the FLOPs or the chip's peak are unknown")

    def plot_what_if(self: _Analysis) -> Drawing:
        """Return the step with each of the first fixes made."""
        found = switches(self.account, self.diagnosis)
        return _there(what_if_drawing(found, self.diagnosis) if found else None, "no finding has a fix to replay")

    def plot_code(self: _Analysis, over: str = "lines") -> Drawing:
        """Return what the user's `lines` or the model's `modules` take, as an icicle."""
        if over not in ("lines", "modules"):
            raise UsageError(f"plot_code() draws lines or modules, not {over!r}")
        trees = self.account.code_trees
        tree = None if trees is None else getattr(trees, over)
        return _there(icicle_drawing(tree, over=over) if tree else None, "no owners were recorded")

    def plot_roofline(self: _Analysis) -> Drawing:
        """Return kernels below the chip's roof."""
        return _there(made.roofline_picture(self.account), "no kernel's shapes are known, or not the chip")

    def plot_kernel_durations(self: _Analysis) -> Drawing:
        """Return how long kernels are."""
        return _there(made.durations_picture(self.account), "nothing ran on a device")

    def plot_queue(self: _Analysis) -> Drawing:
        """Return how much launched work lay waiting on the device."""
        return _there(made.queue_picture(self.account), "no launch of device work was recorded")

    def plot_waiting(self: _Analysis) -> Drawing:
        """Return which rank waits for which."""
        return _there(made.waiting_picture(self.account), "no rank waited for another")

    def plot_traffic(self: _Analysis) -> Drawing:
        """Return which rank sends how much to which."""
        return _there(made.sending_picture(self.account), "no communication of known size was recorded")

    def plot_bandwidth(self: _Analysis) -> Drawing:
        """Return the bandwidth of each group's collectives."""
        return _there(bandwidth_drawing(self.account.collectives, None), "no collective's bandwidth is known")

    def plot_memory(self: _Analysis) -> Drawing:
        """Return the memory of every rank over the recorded steps."""
        return _there(made.memory_picture(self.account), "no allocations were recorded (stepscope record --memory)")

    def plot_memory_of_run(self: _Analysis) -> Drawing:
        """Return the memory of every rank over the whole run."""
        return _there(made.memory_run_picture(self.account), "no step log holds samples of memory")

    def plot_memory_peak(self: _Analysis) -> Drawing:
        """Return what is alive at the peak of the fullest rank."""
        return _there(made.peak_picture(self.account), "no allocations were recorded (stepscope record --memory)")

    def plot_pipeline(self: _Analysis) -> Drawing:
        """Return a pipeline's micro-batches with the ideal below them."""
        return _there(pipeline_drawing(self.account), "there is no pipeline whose micro-batches can be told")

    def plot_experts(self: _Analysis) -> Drawing:
        """Return the load of each rank's experts."""
        return _there(made.experts_picture(self.account), "no experts of known load were found")


def _there(drawing: Drawing | None, why_not: str) -> Drawing:
    if drawing is None:
        raise InputError(f"nothing to plot: {why_not}")
    return drawing
