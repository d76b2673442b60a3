"""DeepSpeed: `recorded(engine)` around the loop of an engine.

    from stepscope.integrations.deepspeed import recorded

    engine, _, loader, _ = deepspeed.initialize(...)
    with recorded(engine, out="run", active=5):
        for batch in loader:
            loss = engine(batch)
            engine.backward(loss)
            engine.step()

The engine reduces gradients after autograd is done and steps its own optimizer class, which torch's hooks do not
see as a whole. So `engine.backward` is the backward pass, its reduction `gradient_sync`, and an `engine.step` at the
end of an accumulation is the optimizer step. Nothing of DeepSpeed is imported here.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stepscope.errors import UsageError
from stepscope.integrations.loop_recording import LoopRecording
from stepscope.record.loop.loop import Loop
from stepscope.record.loop.routine import BACKWARD_BEGINS, BACKWARD_ENDS

_METHODS = ("backward", "allreduce_gradients", "step")


@contextmanager
def recorded(engine: Any, **settings: Any) -> Iterator[LoopRecording]:
    """Record the loop inside the block; settings are those of `stepscope.profile`."""
    lacking = [name for name in (*_METHODS, "is_gradient_accumulation_boundary") if not hasattr(engine, name)]
    if lacking:
        raise UsageError(
            f"recorded: {type(engine).__name__} has no {lacking[0]}(); give the engine from deepspeed.initialize"
        )
    recording = LoopRecording(**settings)
    recording.begin(optimizers=[engine.optimizer])
    try:
        if recording.hooks is not None:
            _wrap(engine, recording.hooks.loop)
        yield recording
    finally:
        for name in _METHODS:
            vars(engine).pop(name, None)
        recording.end()


def _wrap(engine: Any, loop: Loop) -> None:
    run_backward, reduce_gradients, run_step = engine.backward, engine.allreduce_gradients, engine.step

    @functools.wraps(run_backward)
    def backward(*args: Any, **kwargs: Any) -> Any:
        counts = loop.begins(BACKWARD_BEGINS)
        try:
            return run_backward(*args, **kwargs)
        finally:
            if counts:
                loop.ends(BACKWARD_ENDS)

    @functools.wraps(reduce_gradients)
    def allreduce_gradients(*args: Any, **kwargs: Any) -> Any:
        loop.gradient_sync_begins()  # it ends with the backward pass
        return reduce_gradients(*args, **kwargs)

    @functools.wraps(run_step)
    def step(*args: Any, **kwargs: Any) -> Any:
        if not engine.is_gradient_accumulation_boundary():
            return run_step(*args, **kwargs)
        loop.optimizer_begins(engine.optimizer, by=engine)
        try:
            return run_step(*args, **kwargs)
        finally:
            loop.optimizer_ends(by=engine)

    vars(engine).update(zip(_METHODS, (backward, allreduce_gradients, step), strict=True))
