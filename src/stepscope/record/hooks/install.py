"""Put every hook in, each on its own: one that this torch does not allow is said and left out."""

import atexit
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import parent_process
from multiprocessing.util import Finalize
from typing import Any

import torch

from stepscope.record.failsafe import explain, say
from stepscope.record.hooks import (
    amp,
    anomaly,
    backward,
    compiler,
    data,
    forward,
    groups,
    optimizer,
    pipeline,
    recurring,
    saving,
)
from stepscope.record.hooks.after_import import after_import
from stepscope.record.hooks.compiler import CompilerWatch
from stepscope.record.hooks.gradient_sync import GradientSync
from stepscope.record.hooks.loop.batch_size import BatchSize
from stepscope.record.hooks.loop.job_notes import JobNotes
from stepscope.record.hooks.loop.loop import Loop
from stepscope.record.hooks.loop.step_unit import StepUnit
from stepscope.record.hooks.patches import Patches
from stepscope.record.hooks.recurring import Recurring


@dataclass(frozen=True)
class Hooks:
    """What was put in; kept so that it can be taken out."""

    loop: Loop
    patches: Patches
    optimizers: optimizer.OptimizerHooks | None
    forwards: forward.ForwardHooks | None
    compiler: CompilerWatch
    recurring: Recurring
    learned: JobNotes

    def finish(self) -> None:
        """Training is over: end the last step and note what was learned."""
        self.loop.finish()
        self.loop.safely(self.learned.note, self.loop)

    def before_destroy(self) -> None:
        """The process groups go: end the last step and let the recorder ask what they know."""
        self.finish()
        if self.loop.recorder is not None:
            self.loop.recorder.groups_end()

    def hide_from_compiler(self, disable: Callable[[Any], Any]) -> None:
        """Keep torch.compile from tracing us, now that it is used."""
        if self.forwards is not None:
            self.forwards.compiler_is_used()
        self.patches.hide_from_compiler(disable)
        if self.optimizers is not None:
            self.optimizers.hide_from_compiler(disable)

    def remove(self) -> None:
        """Take every hook out."""
        self.loop.stop()
        if self.forwards is not None:
            self.forwards.stop()
        self.patches.undo()
        self.compiler.remove()
        self.recurring.remove()
        if self.optimizers is not None:
            self.optimizers.remove()


def install(start_recorder: Callable[[], Any], unit: StepUnit | None = None) -> Hooks:
    """Return the hooks of this process, in place; the recorder is started with the process group or a backward."""
    patches, batch_size = Patches(), BatchSize()
    loop = Loop(lambda: _start_recorder_with(start_recorder, hooks), unit)
    sync, learned = GradientSync(loop), JobNotes(batch_size)
    found = (sync.model_found, learned.model_found, loop.parameters.watch)
    hooks = Hooks(
        loop,
        patches,
        optimizers=_put_in("optimizer steps", lambda: optimizer.install(loop, patches)),
        forwards=_put_in("forward passes", lambda: forward.install(loop, patches, found)),
        compiler=CompilerWatch(lambda disable: hooks.hide_from_compiler(disable)),
        recurring=Recurring(loop),
        learned=learned,
    )
    _put_in("mixed precision", lambda: amp.install(loop, patches))
    _put_in("backward passes", lambda: backward.install(loop, patches, sync))
    _put_in("data loading", lambda: data.install(loop, patches, batch_size))
    _put_in("process groups", lambda: groups.install(loop, patches, hooks.before_destroy))
    _put_in("garbage collection", hooks.recurring.watch_garbage)
    _put_in("checkpoints", lambda: saving.install(loop, patches))
    loop.on_first_steps += [batch_size.step_ended, learned.step_ended]
    after_import(pipeline.MODULE, lambda: _put_in("pipelines", lambda: _pipelines(loop, patches)))
    after_import(anomaly.MODULE, lambda: _put_in("anomaly detection", lambda: anomaly.install(loop, patches)))
    after_import(compiler.MODULE, lambda: _put_in("torch.compile", hooks.compiler.install))
    after_import(recurring.COMPILER, lambda: _put_in("compilations", hooks.recurring.watch_compiler))
    for module in saving.LATER:
        after_import(module, lambda name=module: _put_in("checkpoints", lambda: saving.install_in(loop, patches, name)))  # type: ignore[misc]
    os.register_at_fork(after_in_child=loop.in_forked_child)
    return hooks


def _put_in(what: str, act: Callable[[], Any]) -> Any:
    """Return `act()`; where this torch lacks what it needs, say so and go on without."""
    try:
        return act()
    except (AttributeError, ImportError, TypeError) as e:
        say(f"torch {torch.__version__}: {what} cannot be seen ({explain(e)}); the rest is recorded")
        return None


def _pipelines(loop: Loop, patches: Patches) -> None:
    pipeline.install(loop, patches, sys.modules[pipeline.MODULE])


def _start_recorder_with(start_recorder: Callable[[], Any], hooks: Hooks) -> Any:
    recorder = start_recorder()
    atexit.register(hooks.finish)  # after the recorder's own, hence run before it
    if parent_process() is not None:  # children of multiprocessing leave without atexit
        Finalize(None, hooks.finish, exitpriority=1)
    return recorder
