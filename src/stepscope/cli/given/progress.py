"""Former place of `stepscope.cli.progress`, for `stepscope.cli.bench`."""

from stepscope.cli.progress import work_progress

__all__ = ["work_progress"]
