"""Install every hook separately: one that this torch does not allow is reported and left out."""

import atexit
import gc
import os
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing import parent_process
from multiprocessing.util import Finalize
from threading import get_ident
from time import perf_counter_ns, sleep, time_ns
from typing import Any

import torch
import torch.distributed
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.utils.data._utils import worker
from torch.utils.data.dataloader import DataLoader, _BaseDataLoaderIter

from stepscope.contract import step_line as regions
from stepscope.contract.step_line import ANOMALY_DETECTION
from stepscope.record.failsafe import explain, leave_out, say
from stepscope.record.hooks import backward, forward
from stepscope.record.hooks.backward import GradientSync
from stepscope.record.hooks.patches import Patches, after_import, around
from stepscope.record.lifetime import LIFETIME, LOAD, SAVE
from stepscope.record.loop.job_notes import JobNotes
from stepscope.record.loop.loop import Loop
from stepscope.record.loop.routine import (
    BACKWARD,
    DATA_BEGINS,
    DATA_ENDS,
    LOADER_BEGINS,
    LOADER_ENDS,
    NO_BATCH,
    SCHEDULE_BEGINS,
)
from stepscope.record.loop.steps import StepUnit
from stepscope.record.owners.loader_samples import SAMPLES

# Mixed precision: a scaler's step is the optimizer's step, also when it finds infinities and skips it.
#
# The unscaling and the check for infinities are part of it: they are what loss scaling costs.


def _amp_install(loop: Loop, patches: Patches) -> None:
    def begins(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> bool:
        loop.optimizer_begins(optimizer, by=scaler)
        return True

    def ends(scaler: Any, *args: Any, **kwargs: Any) -> None:
        loop.optimizer_ends(by=scaler)

    patches.replace(GradScaler, "step", lambda step: around(step, begins, ends))


# Autograd's anomaly detection: the time that a step takes to record a stack for every node of the graph.
#
# With `torch.autograd.set_detect_anomaly(True)` every operator that builds a node gets its Python stack, inside the
# operator: no event of a profiler shows it. torch looks the function up by name in a module, so it is replaced there.

_MODULE = "torch.fx.traceback"


def anomaly_install(loop: Loop, patches: Patches) -> None:
    """Time the function that gives torch its stacks; its module has been imported."""

    def watched(format_stack: Any) -> Any:
        def timed() -> list[str]:
            begin_ns = perf_counter_ns()
            stack: list[str] = format_stack()
            if stack and __file__ in stack[-1]:  # our own frame is nothing that the job did
                stack = stack[:-1]
            if torch.is_anomaly_enabled() and loop.is_training_thread(get_ident()):
                loop.interruptions.add(ANOMALY_DETECTION, begin_ns, perf_counter_ns())
            return stack

        return timed

    patches.replace(sys.modules[_MODULE], "format_stack", watched)


# Keep torch.compile from tracing our replacements, from its first use on.
#
# `torch._dynamo` is loaded by every optimizer, but few jobs compile. What hides a function from it (`disable`) costs a
# microsecond or two at every call, so nothing is hidden before somebody compiles: `torch.compile`, `Module.compile` and
# decorators all begin with `torch._dynamo.optimize`.

_COMPILER_MODULE = "torch._dynamo"


def _compiler_install(ways_in: Patches, hide: Callable[[Callable[[Any], Any]], None]) -> None:
    dynamo = sys.modules[_COMPILER_MODULE]

    def before(*args: Any, **kwargs: Any) -> None:
        if ways_in.undo():
            hide(dynamo.disable)

    for name in ("optimize", "optimize_assert"):
        if hasattr(dynamo, name):
            ways_in.replace(dynamo, name, lambda compile_: around(compile_, before))


# Data loading: how long the training thread waits for each batch of a `DataLoader`, and for its workers to start.
#
# Forked workers get a thread that can sample their lines around the step with frames (`owners/loader_samples`).


def _data_install(loop: Loop, patches: Patches, learned: JobNotes) -> None:

    def watched(next_batch: Any) -> Any:
        def __next__(self: Any) -> Any:
            counts, end = loop.begins(DATA_BEGINS), NO_BATCH
            try:
                batch = next_batch(self)
                end = DATA_ENDS
            except BaseException as e:
                leave_out(e)
                raise
            finally:
                if counts:
                    loop.ends(end)
            if counts and learned.counts_batches:
                loop.safely(learned.loaded, batch, getattr(self, "_num_workers", None))
            return batch

        return __next__

    patches.replace(_BaseDataLoaderIter, "__next__", watched)
    starts = (lambda *_: loop.begins(LOADER_BEGINS), lambda *_: loop.ends(LOADER_ENDS))
    patches.replace(DataLoader, "__iter__", lambda make_iterator: around(make_iterator, *starts))
    patches.replace(worker, "_worker_loop", SAMPLES.in_worker)


# Process groups: after they are made the rank is known and recording starts; before they go the last step ends.

# All modules that hold these functions under their own name once `import torch` is done.
_MODULES = ("torch.distributed.distributed_c10d", "torch.distributed", "torch.distributed.device_mesh")

# for a thread of gloo to take Python's lock once and let go of the last reduction; it needs some microseconds of it
_GLOO_FINISHES_S = 0.05


def _groups_install(loop: Loop, patches: Patches, before_destroy: Callable[[], None]) -> None:
    if not torch.distributed.is_available():
        return

    def starting(original: Any) -> Any:
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            begin_ns = time_ns()
            try:
                result = original(*args, **kwargs)
            except BaseException as e:
                leave_out(e)
                raise
            LIFETIME.mark("group_ns", [begin_ns, time_ns()])
            loop.start()
            return result

        return init_process_group

    def before(group: Any = None, *args: Any, **kwargs: Any) -> None:
        if group is None:
            before_destroy()
            let_gloo_finish()

    for name, make in (
        ("init_process_group", starting),
        ("destroy_process_group", lambda destroy: around(destroy, before)),
    ):
        replacement = make(getattr(torch.distributed, name))
        for module in _MODULES:
            if hasattr(sys.modules.get(module), name):
                patches.share(sys.modules[module], name, replacement)


def let_gloo_finish() -> None:
    """Give gloo's threads Python's lock for a moment, or a job that ends right after its last backward may hang.

    A reduction that backward began holds backward's context (in torch 2.13), and a thread of gloo drops it some time
    later, for which it needs Python's lock. Where the DDP model outlives `destroy_process_group`, as in a script
    that is one function, that thread is joined by the model's end, with the lock held: neither ever goes on. It happens
    to unrecorded jobs too, one in ten of those that end within milliseconds of their last step.
    """
    if hasattr(torch._C, "_stash_obj_in_tls") and _uses_gloo():
        sleep(_GLOO_FINISHES_S)


def _uses_gloo() -> bool:
    try:
        return "gloo" in str(torch.distributed.distributed_c10d.get_backend_config())
    except (ValueError, RuntimeError):  # no default group
        return False


# Optimizer steps, through torch's own global hooks, and which optimizers exist.
#
# Compiled optimizers too: `torch.optim` leaves its graph before every step, so a hook outside of it costs no graph.

# under which torch's dictionaries hold our hooks. torch itself counts up for every hook in the process, and such a
# number is part of a model's pickle: ours must not use one up.
_KEY: Any = -1


class OptimizerHooks:
    """The two global hooks, which torch keeps in dictionaries rather than attributes."""

    def __init__(self, loop: Loop, graphs: "GraphSteps") -> None:
        self._loop, self._graphs = loop, graphs
        self._hooks: tuple[Any, Any] = (self._begins, self._ends)
        loop.rest_optimizers = self.rest
        self._set(*self._hooks)

    def hide_from_compiler(self, disable: Any) -> None:
        """Make torch.compile run the hooks untraced, if they are still there."""
        if _KEY in _global_optimizer_pre_hooks:
            self._hooks = (disable(self._begins), disable(self._ends))
            self._set(*self._hooks)

    def rest(self, rests: bool) -> None:
        """Let the hooks do nothing for a while. They stay where they are: torch is going through them right now."""
        if _KEY in _global_optimizer_pre_hooks:
            self._set(*((_nothing, _nothing) if rests else self._hooks))

    def remove(self) -> None:
        """Take the hooks out."""
        _global_optimizer_pre_hooks.pop(_KEY, None)
        _global_optimizer_post_hooks.pop(_KEY, None)

    def _set(self, before: Any, after: Any) -> None:
        _global_optimizer_pre_hooks[_KEY] = before
        _global_optimizer_post_hooks[_KEY] = after

    def _begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._graphs.captured is not None:
            self._graphs.captured.append(weakref.ref(optimizer))
            return
        token, routine = 2 * id(optimizer), self._loop.routine
        if not (routine.expected == token and routine.takes(token)):
            self._loop.optimizer_begins(optimizer, by=optimizer)

    def _ends(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._graphs.captured is not None:
            return
        token, routine = -id(optimizer), self._loop.routine
        if not (routine.expected == token and routine.takes(token)):
            self._loop.optimizer_ends(by=optimizer)


def _nothing(optimizer: Any, args: Any, kwargs: Any) -> None:
    pass


def _optimizer_install(loop: Loop, patches: Patches, graphs: "GraphSteps") -> OptimizerHooks:

    def watched(original: Any) -> Any:
        def _patch_step_function(self: Any) -> None:
            loop.optimizers.is_made(self)
            original(self)

        return _patch_step_function

    patches.replace(Optimizer, "_patch_step_function", watched)
    return OptimizerHooks(loop, graphs)


# Whole steps as CUDA graphs: an optimizer that steps while a graph is captured only says what the graph holds, and each
# replay of such a graph is its step. The replay itself is in no region: it is forward and backward as well.


class GraphSteps:
    """Which optimizers step in which graphs."""

    def __init__(self, loop: Loop) -> None:
        self.captured: list[Any] | None = None  # references to those in the graph that is being captured
        self._loop = loop
        self._patches = Patches()  # no graph of the compiler holds them
        self._held: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()

    def install(self) -> None:
        for name, before, after in (
            ("capture_begin", self._begins, None),
            ("capture_end", self._ends, None),
            ("replay", self._held.__contains__, self._replayed),
        ):
            self._patches.replace(torch.cuda.CUDAGraph, name, partial(around, before=before, after=after))

    def remove(self) -> None:
        self._patches.undo()

    def _begins(self, *_: Any, **__: Any) -> None:
        self.captured = []

    def _ends(self, graph: Any) -> None:
        if self.captured:
            self._loop.safely(self._held.__setitem__, graph, self.captured)
        self.captured = None

    def _replayed(self, graph: Any) -> None:
        for alive in self._held.get(graph, ()):
            if (optimizer := alive()) is not None:
                self._loop.graph_steps(optimizer)


# Pipelines: every stage begins its step with the schedule, also those that load no data and wait for a neighbour.

_PIPELINE_MODULE = "torch.distributed.pipelining.schedules"


def _pipeline_install(loop: Loop, patches: Patches) -> None:
    def begins(schedule: Any, *args: Any, **kwargs: Any) -> None:
        loop.begins(SCHEDULE_BEGINS)
        if loop.recorder is not None:
            loop.recorder.note(pipeline=_description(schedule))

    for name in ("PipelineScheduleSingle", "PipelineScheduleMulti"):
        if (schedule := getattr(sys.modules[_PIPELINE_MODULE], name, None)) is not None:
            patches.replace(schedule, "step", lambda step: around(step, begins))


def _description(schedule: Any) -> dict[str, Any]:
    stages = getattr(schedule, "_stages", None) or [schedule._stage]
    return {
        "schedule": type(schedule).__name__.removeprefix("Schedule"),
        "microbatches": schedule._n_microbatches,
        "stages": stages[0].num_stages,
        "stages_here": [stage.stage_index for stage in stages],
    }


# What interrupts the training thread at any place: full garbage collections, and torch.compile compiling.
#
# Young generations are collected many times a second in microseconds; only a full collection has a region. Compilations
# of a backward may run on one of autograd's threads while the training thread waits for it.

_COMPILER = "torch._dynamo.callback"
_FULL = 2


class Recurring:
    """The callbacks that note interruptions, and do nothing else: they come inside our own code too."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._handler: Any = None

    def watch_garbage(self) -> None:
        """Note full collections from now on."""
        gc.callbacks.append(self._collects)

    def watch_compiler(self) -> None:
        """Note compilations from now on; the compiler's callbacks have been imported."""
        self._handler = sys.modules[_COMPILER].callback_handler
        self._handler.register_start_callback(self._compilation_begins)
        self._handler.register_end_callback(self._compilation_ends)

    def remove(self) -> None:
        """Note nothing more."""
        if self._collects in gc.callbacks:
            gc.callbacks.remove(self._collects)
        if self._handler is not None and self._compilation_begins in self._handler.start_callbacks:
            self._handler.remove_start_callback(self._compilation_begins)
            self._handler.remove_end_callback(self._compilation_ends)
        self._handler = None

    def _collects(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] == _FULL and self._loop.is_training_thread(get_ident()):
            if phase == "start":
                self._loop.interruptions.begins(regions.GARBAGE_COLLECTION)
            else:
                self._loop.interruptions.ends(regions.GARBAGE_COLLECTION)

    def _compilation_begins(self, *_: Any) -> None:
        if self._loop.is_training_thread(get_ident()) or self._loop.is_inside(BACKWARD):
            self._loop.interruptions.begins(regions.COMPILATION)

    def _compilation_ends(self, *_: Any) -> None:
        self._loop.interruptions.ends(regions.COMPILATION)


# Checkpoints: functions that write models to storage, timed as a separate region, and those that read them.
#
# torch.save, torch.load                                    and functions that call them
# torch.distributed.checkpoint.save, async_save, load       the part on the training thread
# safetensors.torch.save_file, load_file                    as Transformers and Accelerate save

_LATER = {
    "torch.distributed.checkpoint.state_dict_saver": ("save", "async_save"),
    "torch.distributed.checkpoint.state_dict_loader": ("load",),
    "safetensors.torch": ("save_file", "load_file"),
}
# arguments that name the file
_PATHS = ("f", "filename", "checkpoint_id", "storage_writer", "storage_reader")


def _saving_install(loop: Loop, patches: Patches) -> None:
    for name in ("save", "load"):
        replacement = _checkpointing(loop, name, getattr(torch, name))
        for module in (torch.serialization, torch):
            patches.share(module, name, replacement)


def _install_in(loop: Loop, patches: Patches, module: str) -> None:
    for name in _LATER[module]:
        if hasattr(sys.modules[module], name):
            patches.replace(sys.modules[module], name, partial(_checkpointing, loop, name))


def _checkpointing(loop: Loop, name: str, original: Any) -> Any:
    def load_begins(*args: Any, **kwargs: Any) -> bool:
        return bool(loop.safely(LIFETIME.file_begins, LOAD, *args[:1], *map(kwargs.get, _PATHS)))

    def save_begins(*args: Any, **kwargs: Any) -> bool:
        if not loop.saving_begins():
            return False
        loop.safely(LIFETIME.file_begins, SAVE, *args[1:2], *map(kwargs.get, _PATHS))
        return True

    def save_ends(*_: Any, **__: Any) -> None:
        loop.safely(LIFETIME.file_ends)
        loop.saving_ends()

    if name.startswith("load"):
        return around(original, load_begins, lambda *_, **__: loop.safely(LIFETIME.file_ends))
    return around(original, save_begins, save_ends)


@dataclass(frozen=True)
class Hooks:
    """The installed hooks, with what is needed to remove them."""

    loop: Loop
    patches: Patches
    optimizers: OptimizerHooks | None
    forwards: forward.ForwardHooks | None
    ways_to_compiler: Patches
    recurring: Recurring
    learned: JobNotes
    graphs: GraphSteps

    def finish(self) -> None:
        """Training is over: end the last step and note what was learned."""
        self.loop.finish()
        self.loop.safely(self.learned.note, self.loop)

    def before_destroy(self) -> None:
        """End the last step and let the recorder query the process groups before they are destroyed."""
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
        self.ways_to_compiler.undo()
        self.recurring.remove()
        self.graphs.remove()
        if self.optimizers is not None:
            self.optimizers.remove()


def install(start_recorder: Callable[[], Any], unit: StepUnit | None = None) -> Hooks:
    """Return the hooks of this process, in place; the recorder is started with the process group or a backward."""
    patches, ways_to_compiler = Patches(), Patches()
    loop = Loop(lambda: _start_recorder_with(start_recorder, hooks), unit)
    sync, learned, graphs = GradientSync(loop), JobNotes(), GraphSteps(loop)
    found = (sync.model_found, learned.model_found)
    hooks = Hooks(
        loop,
        patches,
        optimizers=_put_in("optimizer steps", _optimizer_install, loop, patches, graphs),
        forwards=_put_in("forward passes", forward.install, loop, patches, found),
        ways_to_compiler=ways_to_compiler,
        recurring=Recurring(loop),
        learned=learned,
        graphs=graphs,
    )
    now: tuple[tuple[Any, ...], ...] = (
        ("mixed precision", _amp_install, loop, patches),
        ("backward passes", backward.install, loop, patches, sync),
        ("data loading", _data_install, loop, patches, learned),
        ("process groups", _groups_install, loop, patches, hooks.before_destroy),
        ("garbage collection", hooks.recurring.watch_garbage),
        ("checkpoints", _saving_install, loop, patches),
        ("steps in CUDA graphs", graphs.install),
    )
    for hook in now:
        _put_in(*hook)
    after_imports: tuple[tuple[Any, ...], ...] = (
        (_PIPELINE_MODULE, "pipelines", _pipeline_install, loop, patches),
        (_MODULE, "anomaly detection", anomaly_install, loop, patches),
        (_COMPILER_MODULE, "torch.compile", _compiler_install, ways_to_compiler, hooks.hide_from_compiler),
        (_COMPILER, "compilations", hooks.recurring.watch_compiler),
        *((module, "checkpoints", _install_in, loop, patches, module) for module in _LATER),
    )
    for module, *hook_later in after_imports:
        after_import(module, partial(_put_in, *hook_later))
    loop.on_first_steps.append(learned.step_ended)
    os.register_at_fork(after_in_child=loop.in_forked_child)
    return hooks


def _put_in(what: str, act: Callable[..., Any], *args: Any) -> Any:
    try:
        return act(*args)
    except (AttributeError, ImportError, TypeError) as e:
        say(f"torch {torch.__version__}: {what} cannot be seen ({explain(e)}); the rest is recorded")
        return None


def _start_recorder_with(start_recorder: Callable[[], Any], hooks: Hooks) -> Any:
    recorder = start_recorder()
    atexit.register(hooks.finish)  # after the recorder's own, hence run before it
    if parent_process() is not None:  # children of multiprocessing leave without atexit
        Finalize(None, hooks.finish, exitpriority=1)
    return recorder
