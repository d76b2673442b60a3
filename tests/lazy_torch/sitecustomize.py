"""Has torch start fast in the jobs of the tests: its compiler is imported once something uses it.

Optimizers, profilers, checkpointing and DistributedDataParallel ask `torch._dynamo` whether they are being traced, and
its import takes 1.7 s of the 3.7 s of CPU that a rank needs for its first step. Who compiles gets the real module;
until then the answers here are those of a compiler that nobody uses. Kernels for tensors without data take another
0.9 s; they are registered with the first `FakeTensorMode`. And a third of a second goes to looking for garbage in what
the import makes. `tests/job_environment.py` puts this folder on PYTHONPATH. Jobs with torch as
users have it: every kind of loop on two ranks (`tests/record/test_loops.py`), what a step costs
(`tests/record/test_overhead.py`), and one process recorded from the command line (`tests/record/launch/`).

And has unrecorded jobs end: torch 2.13 hangs in one of ten that leave their group within milliseconds of a backward, as
`stepscope.record.hooks.install.let_gloo_finish` explains.
"""

import contextlib
import functools
import gc
import importlib
import importlib.machinery
import importlib.util
import sys
import threading
import time
import types

COMPILER = "torch._dynamo"
KERNELS_WITHOUT_DATA = "torch._meta_registrations"
NEED_THEM = (COMPILER, "torch._inductor", "torch.distributed.tensor")


def _disable_dynamo(fn=None, recursive=True):
    """Stand for `torch._compile._disable_dynamo`: hide a function from the compiler once there is one."""
    if fn is None:
        return functools.partial(_disable_dynamo, recursive=recursive)

    @functools.wraps(fn)
    def inner(*args, **kwargs):
        if COMPILER not in sys.modules:
            return fn(*args, **kwargs)
        hidden = getattr(fn, "__dynamo_disable", None)
        if hidden is None:
            hidden = fn.__dynamo_disable = sys.modules[COMPILER].disable(fn, recursive, wrapping=False)
        return hidden(*args, **kwargs)

    return inner


def _use_grad_for_differentiable(func):
    """Stand for the decorator of `torch.optim.optimizer`: break the compiler's graph once there is one."""
    import torch

    def _use_grad(*args, **kwargs):
        compiler = sys.modules.get(COMPILER)
        before = torch.is_grad_enabled()
        try:
            torch.set_grad_enabled(args[0].defaults["differentiable"])
            if compiler is not None:
                compiler.graph_break()
            return func(*args, **kwargs)
        finally:
            if compiler is not None:
                compiler.graph_break()
            torch.set_grad_enabled(before)

    functools.update_wrapper(_use_grad, func)
    return _use_grad


def _let_gloo_finish(distributed_c10d):
    """Have `destroy_process_group` give gloo's threads a moment first."""
    destroy = distributed_c10d.destroy_process_group

    def destroy_process_group(group=None):
        if group is None:
            time.sleep(0.05)
        return destroy(group)

    _replace_in(distributed_c10d, destroy_process_group)


class _Later:
    """What `torch._dynamo` says before anybody imported it; for all that is not known here the real one is imported."""

    def __init__(self, name, **known):
        vars(self).update(known)
        self._name = name

    def __getattr__(self, name):
        return getattr(importlib.import_module(self._name), name)


def _leave_out_compiler(torch):
    """Answer for the compiler until it is there."""
    if COMPILER not in sys.modules:
        utils = _Later(f"{COMPILER}.utils", get_optimize_ddp_mode=lambda: "ddp_optimizer")
        config = _Later(f"{COMPILER}.config", error_on_nested_fx_trace=True)  # as checkpointing asks
        torch._dynamo = _Later(COMPILER, utils=utils, config=config)
    if hasattr(
        getattr(torch, "_C", None), "_set_generator_metaclass"
    ):  # as `torch._prims` does, which comes with the kernels
        torch._C._set_generator_metaclass(importlib.import_module("torch._opaque_base").OpaqueBaseMeta)


def _ask_no_compiler(profiler):
    """Have a profiler ask what a compiler does only where one is there: its `hasattr` imports it."""
    profiler.hasattr = lambda of, name: (name != "_inductor" or "torch._inductor" in sys.modules) and hasattr(of, name)


class _Unregistered(types.ModuleType):
    """Stands for `torch._meta_registrations`, and its own loader: somebody who wants a name of it has it imported."""

    def create_module(self, _):
        return self

    def exec_module(self, _):
        return None

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        _register()
        return getattr(sys.modules[KERNELS_WITHOUT_DATA], name)


def _register():
    if isinstance(sys.modules.get(KERNELS_WITHOUT_DATA), _Unregistered):
        del sys.modules[KERNELS_WITHOUT_DATA]
        importlib.import_module(KERNELS_WITHOUT_DATA)


def _register_before_first_use(fake_tensor):
    mode, begin = fake_tensor.FakeTensorMode, fake_tensor.FakeTensorMode.__init__

    @functools.wraps(begin)
    def __init__(self, *args, **kwargs):
        mode.__init__ = begin
        _register()
        begin(self, *args, **kwargs)

    mode.__init__ = __init__


def _replace_in(module, function):
    """Put a function into a module as if it stood in that file: whose a frame is depends on where it lies."""
    function.__code__ = _moved(function.__code__, module.__file__)
    setattr(module, function.__name__, function)


def _moved(code, file):
    nested = tuple(_moved(const, file) if hasattr(const, "co_code") else const for const in code.co_consts)
    return code.replace(co_filename=file, co_consts=nested)


@contextlib.contextmanager
def _no_garbage():
    """Look for garbage neither meanwhile nor, above all as the process ends, in what is there before the job begins."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class _Finder:
    """Lets the other finders find a module, and acts once it has been loaded."""

    acts = {  # noqa: RUF012
        "torch": _leave_out_compiler,
        "torch._subclasses.fake_tensor": _register_before_first_use,
        "torch._compile": lambda module: _replace_in(module, _disable_dynamo),
        "torch.distributed.distributed_c10d": _let_gloo_finish,
        "torch.profiler.profiler": _ask_no_compiler,
        "torch.optim.optimizer": lambda module: _replace_in(module, _use_grad_for_differentiable),
    }
    _asking = threading.local()
    _left_out = False

    def find_spec(self, name, path=None, target=None):
        if name == KERNELS_WITHOUT_DATA and not self._left_out:
            type(self)._left_out = True
            return importlib.machinery.ModuleSpec(name, _Unregistered(name))  # type: ignore[arg-type]  # a loader by its methods
        if name in NEED_THEM:
            _register()
        if name not in self.acts or getattr(self._asking, "name", None) == name:
            return None
        before, self._asking.name = getattr(self._asking, "name", None), name
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asking.name = before
        if spec is not None and spec.loader is not None:
            self._act_after_loading(spec)
        return spec

    def _act_after_loading(self, spec):
        load = spec.loader.exec_module

        def load_and_act(module):
            vars(spec.loader).pop("exec_module", None)
            with _no_garbage() if spec.name == "torch" else contextlib.nullcontext():
                load(module)
            self.acts.pop(spec.name)(module)

        spec.loader.exec_module = load_and_act


sys.meta_path.insert(0, _Finder())
