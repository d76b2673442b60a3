"""Pipelines: every stage begins its step with the schedule, also those that load no data and wait for a neighbour."""

from typing import Any

from stepscope.record.hooks.loop.loop import Loop
from stepscope.record.hooks.patches import Patches
from stepscope.record.own_frame import leave_out

MODULE = "torch.distributed.pipelining.schedules"


def install(loop: Loop, patches: Patches, schedules: Any) -> None:
    """Put the hook into the module of schedules, which is imported by those who use it only."""

    def watched(schedule_step: Any) -> Any:
        def step(self: Any, *args: Any, **kwargs: Any) -> Any:
            loop.schedule_begins()
            if loop.recorder is not None:
                loop.recorder.note(pipeline=_description(self))
            try:
                return schedule_step(self, *args, **kwargs)
            except BaseException as e:
                leave_out(e)
                raise

        return step

    for name in ("PipelineScheduleSingle", "PipelineScheduleMulti"):
        if hasattr(schedules, name):
            patches.replace(getattr(schedules, name), "step", watched)


def _description(schedule: Any) -> dict[str, Any]:
    stages = getattr(schedule, "_stages", None) or [schedule._stage]
    return {
        "schedule": type(schedule).__name__.removeprefix("Schedule"),
        "microbatches": schedule._n_microbatches,
        "stages": stages[0].num_stages,
        "stages_here": [stage.stage_index for stage in stages],
    }
