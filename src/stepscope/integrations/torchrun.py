"""Plain torchrun, or a single process: `recorded()` around the loop, and nothing else in the script.

    from stepscope.integrations.torchrun import recorded

    with recorded(out="run", active=5):
        for batch in loader:
            ...

Begin it after `init_process_group`, or before: the rank is read when the first step ends. To name the parts of
a step yourself, use `stepscope.profile` and its `region` instead.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stepscope.integrations.loop_recording import LoopRecording


@contextmanager
def recorded(**settings: Any) -> Iterator[LoopRecording]:
    """Record the loop inside the block; settings are those of `stepscope.profile`."""
    with LoopRecording(**settings) as recording:
        yield recording
