"""Owners of a trace whose recorded steps have Python frames themselves (`with_stack=True`), made by anybody.

    train.py(31): step                    a frame; the line is where the function is defined
    nn.Module: Linear_8                   a module, known by its class and number
    <built-in method mm of type object>   no frame: the call of an operator

Such steps are slower than others, so what is said of the host is of steps with frames.
"""

import re
import sys
from collections.abc import Callable
from pathlib import PurePosixPath

import numpy as np

from stepscope.analyze.host.busy_operators import CALLS
from stepscope.analyze.host.calls import HostCalls, call_stacks
from stepscope.analyze.owners.from_frames import collective_owners, work_owners
from stepscope.analyze.owners.host_time import host_time
from stepscope.analyze.owners.match import operators_and_ranges
from stepscope.analyze.owners.ownership import NOBODY, Ids, Mask, OwnedWork, Ownership
from stepscope.analyze.step.regions import Marks, marks_of
from stepscope.contract.owners import FUNCTIONS
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.run.device_work import lookup
from stepscope.run.owners import Frame
from stepscope.run.rank import Rank
from stepscope.stats.distinct import distinct
from stepscope.trace.classify import EventKind, by_string
from stepscope.trace.table import Int64s

Path = tuple[int, ...]
Added = Callable[[Path, int], Path]
"""a path with one more frame or module"""

_FRAME = re.compile(r"^(?P<file>[^(]+)\((?P<line>\d{1,9})\): (?P<function>.*)$")
_MODULE = "nn.Module: "
_PACKAGES = {
    *("torch", "torchvision", "torchaudio", "torchgen", "functorch", "triton", "numpy", "PIL", "tqdm", "einops"),
    *("transformers", "accelerate", "datasets", "tokenizers", "diffusers", "peft", "lightning", "pytorch_lightning"),
    *("lightning_fabric", "deepspeed", "megatron", "apex", "flash_attn", "xformers", "timm", "stepscope"),
}
"""whose files a trace names relative to the folder of installed packages"""
_INSTALLED = ("site-packages/", "dist-packages/", "<frozen", "<string>", "<__array")


@dataclass(frozen=True, eq=False, repr=False)
class _Kinds(ArrayRecord):
    """What each distinct name of a Python event is."""

    frames: tuple[Frame, ...]
    frame_of: Int64s
    """by string id: the frame, NOBODY for none"""
    modules: tuple[str, ...]
    module_of: Int64s


def ownership_by_own_frames(rank: Rank) -> Ownership:
    """Return who owns what a rank did, by the frames in its own trace."""
    marks = marks_of(rank)
    python = call_stacks(rank.trace, np.flatnonzero(rank.kinds == EventKind.PYTHON))
    kinds = _kinds(rank, python)
    stack, stacks = _paths(python, kinds.frame_of[python.name], _user_and_first_library(kinds.frames))
    module, paths = _paths(python, kinds.module_of[python.name], lambda path, new: (*path, new))
    modules = tuple(".".join(kinds.modules[m] for m in path) for path in paths)
    calls = operators_and_ranges(rank)
    inside = _innermost(rank, python, calls)
    raw = np.where(inside >= 0, stack[inside], NOBODY).astype(np.int32)
    raw_module = np.where(inside >= 0, module[inside], NOBODY).astype(np.int32)
    by_call = _linked(rank, marks, calls, raw, raw_module)
    # Python events cut the host's time as operators do.
    both = call_stacks(rank.trace, np.sort(np.concatenate((calls.row, python.row))))
    at, at_python = calls.at_rows(both.row), python.at_rows(both.row)
    of_python = OwnedWork(stack, stack, module, np.zeros(len(python), bool))
    by_both = by_call.at(at).where(at >= 0, of_python.at(at_python))

    def between(previous: Int64s, following: Int64s) -> OwnedWork:
        return by_both.at(np.full(len(following), -1))

    host = host_time(rank, marks, both, by_both, None, between, python=at_python >= 0)
    return Ownership(
        rank=rank,
        lines=FUNCTIONS,
        frames=kinds.frames,
        stacks=tuple(stacks),
        modules=modules,
        calls=calls,
        by_call=by_call,
        host=host,
        by_work=work_owners(rank, calls, by_call, host),
        by_collective=collective_owners(rank, calls, by_call, host),
        matched_share=None,
    )


def _kinds(rank: Rank, python: HostCalls) -> _Kinds:
    strings = rank.trace.strings
    frames: dict[Frame, int] = {}
    modules: dict[str, int] = {}
    frame_of, module_of = (np.full(len(strings), NOBODY, np.int64) for _ in range(2))
    for name in distinct(python.name).tolist():
        text = strings[name] if name >= 0 else ""
        if text.startswith(_MODULE):
            module_of[name] = modules.setdefault(text.removeprefix(_MODULE), len(modules))
        elif found := _FRAME.match(text):
            line = int(found["line"])
            frame = Frame(found["file"], line, found["function"], _is_users(found["file"]), line)
            frame_of[name] = frames.setdefault(frame, len(frames))
    return _Kinds(tuple(frames), frame_of, tuple(modules), module_of)


def _is_users(file: str) -> bool:
    """Return whether a file is the user's by its name, which the profiler shortens by the folders of `sys.path`."""
    if any(part in file for part in _INSTALLED):
        return False
    top = PurePosixPath(file).parts[0] if file else ""
    return top.removesuffix(".py") not in (_PACKAGES | sys.stdlib_module_names) or top == "/"


def _user_and_first_library(frames: tuple[Frame, ...]) -> Added:
    """Return how a frame adds to a stack: the user's always, of libraries the first below the user's."""

    def added(path: Path, new: int) -> Path:
        if frames[new].is_user:
            below = path if not path or frames[path[-1]].is_user else path[:-1]
            return (*below, new)
        return (*path, new) if path and frames[path[-1]].is_user else path

    return added


def _paths(python: HostCalls, own: Int64s, added: Added) -> tuple[Ids, list[Path]]:
    """Return for each Python event the path of what it and its callers are (frames, or modules), and all paths."""
    known: dict[Path, int] = {}
    paths: list[Path] = []
    grown: dict[tuple[int, int], int] = {}
    out = [NOBODY] * len(python)
    for i, (parent, new) in enumerate(zip(python.parent.tolist(), own.tolist(), strict=True)):
        above = out[parent] if parent >= 0 else NOBODY
        if new < 0:
            out[i] = above
            continue
        at = grown.get((above, new))
        if at is None:
            path = added(paths[above] if above >= 0 else (), new)
            at = known.setdefault(path, len(paths)) if path else NOBODY
            if at == len(paths):
                paths.append(path)
            grown[above, new] = at
        out[i] = at
    return np.array(out, np.int32), paths


def _innermost(rank: Rank, python: HostCalls, calls: HostCalls) -> Int64s:
    """Return the innermost Python event around each call; for the autograd engine's thread, which has none of its own,
    the one of the training thread that waits for it.
    """
    inside = python.innermost_at(calls.thread, calls.start_ns)
    lost = np.flatnonzero(inside < 0)
    main = np.full(len(lost), marks_of(rank).main_thread)
    inside[lost] = python.innermost_at(main, calls.start_ns[lost])
    return inside


def _linked(rank: Rank, marks: Marks, calls: HostCalls, raw: Ids, module: Ids) -> OwnedWork:
    """Return the owners of calls: in backward those of the forward operator with the node's sequence number."""
    if not len(calls):
        return OwnedWork(raw, raw, module, np.zeros(0, bool))
    trace = rank.trace
    sequence = trace.arg("sequence").at(calls.row, missing=-1)
    is_node = np.zeros(len(calls), bool)
    is_node[calls.at_rows(marks.autograd_nodes)] = True
    node = calls.nearest(is_node)
    builds = (sequence >= 0) & (trace.arg("fwd_thread").at(calls.row, missing=0) <= 0) & ~is_node
    again = calls.nearest(builds & (node >= 0))  # forward work run again keeps its own
    forward = np.flatnonzero(builds)
    found = lookup(sequence[forward], forward, np.where(is_node, sequence, -2))
    owner = np.where(found >= 0, found, -1)
    gathers = by_string(trace, calls.name, lambda s: "AccumulateGrad" in s).astype(bool) & is_node
    owner = _of_node_before(calls, is_node, gathers, owner)
    use = np.where((node >= 0) & (again < 0), owner[node], -1)
    sends = by_string(trace, calls.name, lambda s: s.startswith(CALLS)).astype(bool)
    use[gathers[node] & (node >= 0) & (calls.nearest(sends) >= 0)] = -1  # a bucket is of no forward line
    stack = np.where(use >= 0, raw[use], raw).astype(np.int32)
    return OwnedWork(stack, raw, np.where(use >= 0, module[use], module).astype(np.int32), node >= 0)


def _of_node_before(calls: HostCalls, is_node: Mask, gathers: Mask, owner: Int64s) -> Int64s:
    """Return the forward operator of each node; AccumulateGrad has that of the node before it on its thread."""
    known = np.where(is_node & (owner >= 0), np.arange(len(calls)), -1)
    last = np.maximum.accumulate(known)
    same = (last >= 0) & (calls.thread[last] == calls.thread)
    return np.where(gathers & same, owner[last], owner)
