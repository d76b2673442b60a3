"""Has torch start fast in the jobs of the tests: what an eager CPU job never uses is imported once something uses it.

    torch._dynamo               1.7 s   optimizers and DistributedDataParallel ask it whether they are being traced
    torch._meta_registrations   0.6 s   shapes without values, for fake and meta tensors

A rank that trains starts with 1.5 s of CPU instead of 3.7 s. Who compiles or makes a fake tensor gets the real modules;
until then the answers here are those of a compiler that nobody uses. `tests/job_environment.py` puts this folder on
PYTHONPATH. Jobs with torch as users have it: every kind of loop on two ranks (`tests/record/test_loops.py`), what a
step costs (`tests/record/test_overhead.py`), and one process recorded from the command line (`tests/record/launch/`).
"""

import functools
import importlib
import importlib.machinery
import importlib.util
import sys
import threading

COMPILER, SHAPES = "torch._dynamo", "torch._meta_registrations"
_AFTER_SHAPES = (COMPILER, "torch._decomp", "torch._prims", "torch._refs", "torch.utils._content_store")


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


class _Later:
    """What `torch._dynamo` says before anybody imported it; for all that is not known here the real one is imported."""

    def __init__(self, name, **known):
        vars(self).update(known)
        self._name = name

    def __getattr__(self, name):
        return getattr(importlib.import_module(self._name), name)


def _torch_is_there(torch):
    """Take the empty module of shapes away, so that the next who asks gets the real one; no compiler so far."""
    if isinstance(getattr(sys.modules.get(SHAPES), "__loader__", None), _Empty):
        del sys.modules[SHAPES], torch._meta_registrations
        if hasattr(torch._C, "_set_generator_metaclass"):  # else set among the shapes: no generator without it
            torch._C._set_generator_metaclass(importlib.import_module("torch._opaque_base").OpaqueBaseMeta)
    if COMPILER not in sys.modules:
        torch._dynamo = _Later(
            COMPILER, utils=_Later(f"{COMPILER}.utils", get_optimize_ddp_mode=lambda: "ddp_optimizer")
        )
    mode = sys.modules["torch._subclasses.fake_tensor"].FakeTensorMode
    begin = mode.__init__

    @functools.wraps(begin)
    def begin_with_shapes(self, *args, **kwargs):
        importlib.import_module(SHAPES)
        begin(self, *args, **kwargs)

    mode.__init__ = begin_with_shapes


def _replace_in(module, function):
    """Put a function into a module as if it stood in that file: whose a frame is depends on where it lies."""
    function.__code__ = _moved(function.__code__, module.__file__)
    setattr(module, function.__name__, function)


def _moved(code, file):
    nested = tuple(_moved(const, file) if hasattr(const, "co_code") else const for const in code.co_consts)
    return code.replace(co_filename=file, co_consts=nested)


class _Finder:
    """Lets the other finders find a module, and acts once it has been loaded."""

    acts = {  # noqa: RUF012
        "torch": _torch_is_there,
        "torch._compile": lambda module: _replace_in(module, _disable_dynamo),
        "torch.optim.optimizer": lambda module: _replace_in(module, _use_grad_for_differentiable),
    }
    _asking = threading.local()

    def find_spec(self, name, path=None, target=None):
        if name == SHAPES and "torch" in self.acts:
            return importlib.machinery.ModuleSpec(name, _Empty())
        if name in _AFTER_SHAPES and "torch" not in self.acts:  # in another order their imports go in circles
            importlib.import_module(SHAPES)
            if name in sys.modules:  # by one of the shapes
                return _spec_of_loaded(sys.modules[name])
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
            load(module)
            self.acts.pop(spec.name)(module)

        spec.loader.exec_module = load_and_act


def _spec_of_loaded(module):
    """Return a spec that gives a module which was loaded meanwhile; importlib asks the module itself for it."""
    spec = importlib.machinery.ModuleSpec(module.__name__, _Loaded(module))
    module.__spec__ = spec
    return spec


class _Loaded:
    """Loads nothing, and leaves the module as it was."""

    def __init__(self, module):
        self.module, self.spec = module, module.__spec__

    def create_module(self, spec):
        return self.module

    def exec_module(self, module):
        module.__spec__ = self.spec


class _Empty:
    """Loads a module without anything in it."""

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, _Finder())
