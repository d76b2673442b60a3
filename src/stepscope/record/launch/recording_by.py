"""Whether somebody else records this process: one recorder is enough, and two would cancel each other's profiler."""

import sys

from stepscope.record.config import RecordConfig
from stepscope.record.session import current

_INJECTED = "stepscope.record.launch.inject_point"


def already_recorded() -> bool:
    """Return whether there is a recorder, or will be: `stepscope record` starts its own when training begins."""
    return current() is not None or followed_from_outside()


def followed_from_outside() -> bool:
    """Return whether the hooks of `stepscope record` are in this process and mark steps and regions by themselves."""
    config = RecordConfig.from_env() if _INJECTED in sys.modules else None
    return config is not None and not config.only_set
