"""The owners of all ranks of a run, and what they took."""

import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from itertools import pairwise
from keyword import iskeyword
from pathlib import PurePosixPath

import numpy as np

from stepscope.analyze.host_calls import CALLS, HostCalls, call_stacks
from stepscope.analyze.match_owners import collective_owners, operators_and_ranges, work_owners
from stepscope.analyze.owner_host_time import host_time
from stepscope.analyze.ownership import Ids, OwnedWork, Ownership
from stepscope.analyze.phases import Marks, marks_of
from stepscope.analyze.stacks import NOBODY, Stacks
from stepscope.contract.owners import FUNCTIONS
from stepscope.run.device_work import lookup
from stepscope.run.load import Run
from stepscope.run.owners import Frame, RankOwners
from stepscope.run.rank import Rank
from stepscope.run.source_text import SourceText, code_of
from stepscope.stats.distinct import distinct
from stepscope.trace.classify import EventKind, by_string
from stepscope.trace.table import Int64s


def ownership_of(run: Run) -> tuple[Ownership | None, ...]:
    """Return the owners of each rank: by its file of owners, else by frames in its trace; None where it has neither."""
    by_rank = {owners.rank: owners for owners in run.owners}
    return tuple(_ownership(rank, by_rank.get(rank.rank), run.source) for rank in run.ranks)


def _ownership(rank: Rank, owners: RankOwners | None, source: SourceText) -> Ownership | None:
    if not len(rank.steps):
        return None
    if owners is not None:
        from stepscope.analyze.match_owners import ownership_by_frames  # only where owners were recorded

        return ownership_by_frames(rank, with_operator_lines(owners, source))
    if (rank.kinds == EventKind.PYTHON).any():
        return _ownership_by_own_frames(rank)
    return None


# Owners of a trace whose recorded steps have Python frames themselves (`with_stack=True`), made by anybody.
#
#     train.py(31): step                    a frame; the line is where the function is defined
#     nn.Module: Linear_8                   a module, known by its class and number
#     <built-in method mm of type object>   no frame: the call of an operator
#
# Such steps are slower than others, so what is said of the host is of steps with frames.

# Python events inside each other, four times as deep as Python itself allows unless told
_MAX_FRAMES = 4096
_MAX_MODULES = 512
# characters of all paths of modules
_MAX_MODULE_TEXT = 1 << 26
_FRAME = re.compile(r"^(?P<file>[^(]+)\((?P<line>\d{1,9})\): (?P<function>.*)$")
_MODULE = "nn.Module: "
# whose files a trace names relative to the folder of installed packages
_PACKAGES = {
    *("torch", "torchvision", "torchaudio", "torchgen", "functorch", "triton", "numpy", "PIL", "tqdm", "einops"),
    *("transformers", "accelerate", "datasets", "tokenizers", "diffusers", "peft", "lightning", "pytorch_lightning"),
    *("lightning_fabric", "deepspeed", "megatron", "apex", "flash_attn", "xformers", "timm", "stepscope"),
}
_INSTALLED = ("site-packages/", "dist-packages/", "<frozen", "<string>", "<__array")


def _ownership_by_own_frames(rank: Rank) -> Ownership:
    marks = marks_of(rank)
    python, deep = _shallow(call_stacks(rank.trace, np.flatnonzero(rank.kinds == EventKind.PYTHON)))
    frames, frame, module_names, own_module = _frames_and_modules(rank, python)
    stack, stacks = _stacks(python, frames, frame)
    module, modules, cut = _modules(python, module_names, own_module)
    notes = (
        (deep, f"{deep:,} Python events below {_MAX_FRAMES:,} others are counted for the frame around them"),
        (cut, f"modules nested more than {_MAX_MODULES} deep are counted for the module around them"),
    )
    calls = operators_and_ranges(rank)
    inside = _innermost(rank, python, calls)
    raw = np.where(inside >= 0, stack[inside], NOBODY).astype(np.int32)
    by_call = _linked(rank, marks, calls, raw, np.where(inside >= 0, module[inside], NOBODY).astype(np.int32))
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
        frames=frames,
        stacks=stacks,
        modules=modules,
        calls=calls,
        by_call=by_call,
        host=host,
        by_work=work_owners(rank, calls, by_call, host),
        by_collective=collective_owners(rank, calls, by_call, host),
        matched_share=None,
        notes=tuple(f"rank {rank.rank}: {note}" for applies, note in notes if applies),
    )


def _frames_and_modules(
    rank: Rank, python: HostCalls
) -> tuple[tuple[Frame, ...], list[int], tuple[str, ...], list[int]]:
    """Return the frames, that of each Python event (NOBODY for none), and the same for modules."""
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
    return tuple(frames), frame_of[python.name].tolist(), tuple(modules), module_of[python.name].tolist()


def _is_users(file: str) -> bool:
    if any(part in file for part in _INSTALLED):
        return False
    top = PurePosixPath(file).parts[0] if file else ""
    return top.removesuffix(".py") not in (_PACKAGES | sys.stdlib_module_names) or top == "/"


def _stacks(python: HostCalls, frames: tuple[Frame, ...], own: list[int]) -> tuple[Ids, Stacks]:
    stacks = Stacks(frames)
    is_user = [frame.is_user for frame in frames]
    out, ends_in_user = [NOBODY] * len(python), [False] * len(python)
    for i, (parent, new) in enumerate(zip(python.parent.tolist(), own, strict=True)):
        above, below_user = (out[parent], ends_in_user[parent]) if parent >= 0 else (NOBODY, False)
        out[i], ends_in_user[i] = above, below_user
        if new >= 0 and (is_user[new] or below_user):
            caller = above if below_user or not is_user[new] else stacks.users(above)
            out[i], ends_in_user[i] = stacks.called(caller, new), is_user[new]
    return np.array(out, np.int32), stacks


def _modules(python: HostCalls, names: tuple[str, ...], own: list[int]) -> tuple[Ids, tuple[str, ...], bool]:
    known: dict[tuple[int, int], int] = {}
    paths: list[str] = []
    depth: list[int] = []
    left, cut = _MAX_MODULE_TEXT, False
    out = [NOBODY] * len(python)
    for i, (parent, new) in enumerate(zip(python.parent.tolist(), own, strict=True)):
        above = out[i] = out[parent] if parent >= 0 else NOBODY
        if new < 0:
            continue
        if (above, new) not in known:
            path = names[new] if above < 0 else f"{paths[above]}.{names[new]}"
            level = depth[above] + 1 if above >= 0 else 1
            if above >= 0 and (level > _MAX_MODULES or len(path) > left):
                cut = True
                continue
            left -= len(path)
            known[above, new] = len(paths)
            paths.append(path)
            depth.append(level)
        out[i] = known[above, new]
    return np.array(out, np.int32), tuple(paths), cut


def _shallow(python: HostCalls) -> tuple[HostCalls, int]:
    depth: list[int] = []
    for parent in python.parent.tolist():
        depth.append(depth[parent] + 1 if parent >= 0 else 1)
    keep = np.array(depth, np.int64) <= _MAX_FRAMES
    deep = len(python) - int(keep.sum())
    if not deep:
        return python, 0
    place = np.append(np.cumsum(keep) - 1, -1).astype(np.int32)  # callers of what stays stay
    columns = {f.name: getattr(python, f.name)[keep] for f in fields(HostCalls)}
    return HostCalls(**{**columns, "parent": place[columns["parent"]]}), deep


def _innermost(rank: Rank, python: HostCalls, calls: HostCalls) -> Int64s:
    """Return the innermost Python event around each call; for the autograd engine's thread, which has none of its own,
    the one of the training thread that waits for it.
    """
    inside = python.innermost_at(calls.thread, calls.start_ns)
    lost = np.flatnonzero(inside < 0)
    inside[lost] = python.innermost_at(np.full(len(lost), marks_of(rank).main_thread), calls.start_ns[lost])
    return inside


def _linked(rank: Rank, marks: Marks, calls: HostCalls, raw: Ids, module: Ids) -> OwnedWork:
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
    last = np.maximum.accumulate(np.where(is_node & (owner >= 0), np.arange(len(calls)), -1))
    owner = np.where(gathers & ((last >= 0) & (calls.thread[last] == calls.thread)), owner[last], owner)
    use = np.where((node >= 0) & (again < 0), owner[node], -1)
    sends = by_string(trace, calls.name, lambda s: s.startswith(CALLS)).astype(bool)
    use[gathers[node] & (node >= 0) & (calls.nearest(sends) >= 0)] = -1  # a bucket is of no forward line
    stack = np.where(use >= 0, raw[use], raw).astype(np.int32)
    return OwnedWork(stack, raw, np.where(use >= 0, module[use], module).astype(np.int32), node >= 0)


# Lines of operators that raise no call, by the source between the calls before and after.
#
#     44  rows = torch.cat([d, e], 1)                    a call: known
#     45  if "outer" in names:
#     46      products = (rows[:, None] * rows).sum(-1)  `*` raises none: it ran after the call in 44, before `sum` in
#     46
#
# Of the lines from the one call to the other, those are left that hold the symbol of such an operator. Where that is
# one
# line, it is known; where there are several, the operator is between the first and the last of them. Lines alone are
# looked at, never parsed as a program: anybody may have put the text there.

# between two calls; further apart they say nothing of each other
MAX_LINES = 60

# of an operator, without `aten::` and the underscore of one that works in place
_SYMBOLS = {
    **dict.fromkeys(("sub", "rsub", "neg"), "-"),
    **dict.fromkeys(("div", "true_divide", "reciprocal"), "/"),
    **dict.fromkeys(("bitwise_and", "__and__"), "&"),
    **dict.fromkeys(("bitwise_or", "__or__"), "|"),
    **dict.fromkeys(("bitwise_xor", "__xor__"), "^"),
    **dict.fromkeys(("index", "index_put", "copy", "fill"), "["),
    "add": "+",
    "mul": "*",
    "remainder": "%",
    "bitwise_not": "~",
    "floor_divide": "//",
    "pow": "**",
    "matmul": "@",
    "lt": "<",
    "gt": ">",
    "le": "<=",
    "ge": ">=",
    "eq": "==",
    "ne": "!=",
}
# of those that move nothing: they tell a line only where nothing else does
_VIEWS = dict.fromkeys(("select", "slice", "unsqueeze", "alias"), "[")

_OPERATORS = frozenset(_SYMBOLS.values())
_TOKEN = re.compile(r"\w[\w.]*|\*\*|//|->|[<>=!]=|<<|>>|[-+*/%@&|^~<>\[]|\S")
# before an operator that has a left side; not in `f(*args)`, `x = -1`, `return [1, 2]`
_OPERAND_ENDS = re.compile(r'[\w)\]}"]$')


def with_operator_lines(owners: RankOwners, source: SourceText) -> RankOwners:
    """Return the owners with the lines of operators that raise no call as far as the kept source tells them."""
    unsure = {i for i, f in enumerate(owners.frames) if f.is_user and 0 < f.line < f.line_to <= f.line + MAX_LINES}
    if not unsure:
        return owners
    frames = list(owners.frames)
    for i, wanted in _symbols_at(owners, unsure).items():
        frame, lines = frames[i], source.lines(frames[i].file) or ()
        numbers = range(frame.line, min(frame.line_to, len(lines)) + 1)
        holding = [n for n in numbers if wanted & set(operator_symbols(lines[n - 1]))]
        if holding:
            frames[i] = replace(frame, line=holding[0], line_to=holding[-1])
    return replace(owners, frames=tuple(frames))


def _symbols_at(owners: RankOwners, unsure: set[int]) -> dict[int, set[str]]:
    innermost = [stack[-1] if stack else -1 for stack in owners.stacks]
    names: dict[int, set[str]] = defaultdict(set)
    for thread in owners.threads:
        around: list[int] = []  # the stacks of the operators that are open
        for name, depth, stack in zip(thread.name.tolist(), thread.depth.tolist(), thread.stack.tolist(), strict=True):
            is_part = depth > 0 and around[depth - 1 : depth] == [stack]  # of what the symbol stands for
            around[depth:] = [stack]
            if stack >= 0 and innermost[stack] in unsure and not is_part:
                bare = owners.names[name].removeprefix("aten::")
                names[innermost[stack]] |= {bare, bare.removesuffix("_")}
    by_frame = {frame: _symbols(asked, _SYMBOLS) or _symbols(asked, _VIEWS) for frame, asked in names.items()}
    return {frame: symbols for frame, symbols in by_frame.items() if symbols}


def _symbols(names: set[str], of_name: Mapping[str, str]) -> set[str]:
    return {of_name[name] for name in names if name in of_name}


def operator_symbols(line: str) -> Iterator[str]:
    """Return the symbols in a line that may stand for an operator on tensors.

    >>> list(operator_symbols('x = f(*a, -1)[0] * scale  # times 2 + 3'))
    ['[', '*']
    """
    before = ""
    for token, after in pairwise([*_TOKEN.findall(code_of(line)), ""]):
        unary = iskeyword(before) or not _OPERAND_ENDS.search(before)
        wanted = not unary or (token in "~-" and not after[:1].isdigit())
        if token in _OPERATORS and wanted and '"' not in (before, after):
            yield token
        before = token
