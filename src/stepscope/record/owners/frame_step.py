"""One step with Python frames, after the window: watched, read and written down for the helper; in no timing.

The step has the same marks as those of the window (its own, and the regions), so that operators of the two correspond.
"""

import gc
import json
import linecache
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import torch

from stepscope.contract.run_folder import (
    AUTOGRAD,
    EXECUTING,
    FUNCTIONS,
    MAX_SOURCE_BYTES,
    MAX_SOURCE_FILE_BYTES,
    NONE,
    OTHER,
    OWNERS_SCHEMA,
    TRAINING,
    Owners,
    OwnersThread,
)
from stepscope.contract.step_line import EVALUATE
from stepscope.record.config import RecordConfig
from stepscope.record.owners.event_tree import EMPTY, USER, Event, Places, Stacks, below, walked
from stepscope.record.owners.line_times import LineTimes
from stepscope.record.owners.loader_samples import Line
from stepscope.record.window.budget import TypicalStep
from stepscope.record.window.guards import ProfilerGuard
from stepscope.record.window.watched_step import WatchedStep


class CallCount:
    """Counts on the thread that begins it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._count = 0
        self._is_over = False
        self._callback = self._note  # one object, to be recognised
        self.why_not: str | None = None  # a step should not be watched with frames

    def begin(self) -> None:
        """Count from now on, unless another profile function is set."""
        self.why_not = why_not_traced()
        if self.why_not is None:
            sys.setprofile(self._callback)

    def end(self) -> None:
        self._is_over = True  # on another thread the next call there takes it off
        if sys.getprofile() is self._callback:
            sys.setprofile(None)

    def _note(self, _frame: Any, event: str, _arg: Any) -> None:
        if event in ("call", "c_call"):
            self._count += 1
        if self._is_over:
            sys.setprofile(None)
        elif self._count > self._limit:
            self.why_not = f"a step makes over {self._limit} Python calls; too many to record frames"
            self.end()


def why_not_traced() -> str | None:
    """Return why this thread's calls are not ours to watch, None where they are."""
    if sys.getprofile() is not None:
        return "a profile function (sys.setprofile) is set on the training thread, and stays there"
    return None


# A tree of function calls from the profiler's plain events, for a torch without an event tree: lines of definitions.
#
# Plain events name a Python function `file.py(12): forward`, 12 being the line of its definition. They are put below
# each other by time, and look like nodes of the event tree: a call's caller is then known by its definition alone.


def _function_tree(events: Iterable[Any]) -> list[Any]:
    roots: list[Any] = []
    open_nodes: dict[int, list[Any]] = {}
    for event in sorted(events, key=lambda e: (e.start_ns(), -e.duration_ns())):
        thread, start_ns = event.start_thread_id(), event.start_ns()
        above = open_nodes.setdefault(thread, [])
        while above and above[-1].end_time_ns <= start_ns:
            above.pop()
        node = _node(event, next((n for n in reversed(above) if n.tag.name == "PyCall"), None))
        (above[-1].children if above else roots).append(node)
        above.append(node)
    return roots


def _node(event: Any, function: Any) -> Any:
    name = event.name()
    found = re.match(r"^(?P<file>[^()]+)\((?P<line>\d+)\): (?P<function>.+)$", name)
    nowhere = SimpleNamespace(file_name="<unknown>", function_name="<unknown>", line_number=0)
    caller = function.extra_fields.callsite if function is not None else nowhere
    if found:
        site = SimpleNamespace(file_name=found["file"], function_name=found["function"], line_number=int(found["line"]))
        kind, fields = "PyCall", SimpleNamespace(caller=caller, callsite=site, module=None)
    elif name.startswith(("<built-in", "nn.Module: ")):
        kind, fields = "PyCCall", SimpleNamespace(caller=caller)
    else:
        annotation = "USER_SCOPE" if getattr(event, "is_user_annotation", lambda: False)() else "FUNCTION"
        kind = "TorchOp"
        fields = SimpleNamespace(sequence_number=event.sequence_nr(), scope=SimpleNamespace(name=annotation))
    return SimpleNamespace(
        name=name,
        tag=SimpleNamespace(name=kind),
        extra_fields=fields,
        children=[],
        start_tid=event.start_thread_id(),
        start_time_ns=event.start_ns(),
        end_time_ns=event.start_ns() + event.duration_ns(),
    )


# Operators in columns, one table per thread, with the Python time between them.
#
#     events of a thread    call f .. [ op a [ op b ] ] .. call g .. [ op c ] ..
#     operators             a (depth 0), b (depth 1), c (depth 0)
#     python                before a: f's lines; before c: f's and g's; after c: f's
#
# Depth counts operators and annotations by time. Python time continues inside an annotation: only operators end it.
# The time holds what watching costs: so much at the begin of each call that a line makes, so much at its end.


def _threads_of(
    events: Iterable[Event],
    *,
    step: int,
    training_thread: int,
    stack_number: Callable[[int], int],
    module_number: Callable[[int | None], int],
    name_number: Callable[[str], int],
) -> list[OwnersThread]:
    by_thread: dict[int, list[Event]] = {training_thread: []}
    for event in events:
        by_thread.setdefault(event.thread, []).append(event)
    out: list[OwnersThread] = []
    for thread, own in by_thread.items():
        own.sort(key=lambda event: event.start_ns)  # stable: parents stay before children that start with them
        operators = [event for event in own if event.name is not None]
        if not operators:
            continue
        is_autograd = any(str(event.name).startswith(EVALUATE) for event in operators)
        out.append(
            {
                "role": TRAINING if thread == training_thread else AUTOGRAD if is_autograd else OTHER,
                "name": [name_number(str(event.name)) for event in operators],
                "depth": _depths(operators),
                "stack": [stack_number(event.stack) for event in operators],
                "module": [module_number(event.module) for event in operators],
                "sequence": [event.sequence for event in operators],
                "step": [step] * len(operators),
                "python": [[i, stack_number(stack), ns, calls] for i, stack, ns, calls in _Gaps().of(own) if stack],
            }
        )
    return out


def _depths(operators: list[Event]) -> list[int]:
    out: list[int] = []
    ends: list[int] = []
    for event in operators:
        while ends and ends[-1] <= event.start_ns:
            ends.pop()
        out.append(len(ends))
        ends.append(min(event.end_ns, ends[-1]) if ends else event.end_ns)
    return out


@dataclass(slots=True)
class _Open:
    event: Event
    stack: int | None = None  # of the last call it made


class _Gaps:
    def __init__(self) -> None:
        self._open: list[_Open] = []
        self._operators_open = 0
        self._seen = 0  # operators and annotations
        self._now_ns = 0
        self._gap: dict[int, int] = {}
        self._calls: dict[int, int] = {}  # begins and ends of calls
        self._out: list[tuple[int, int, int, int]] = []

    def of(self, events: list[Event]) -> list[tuple[int, int, int, int]]:
        for event in events:
            self._close_until(event.start_ns)
            self._pass(event.start_ns, coming=event if event.name is None else None)
            if event.name is not None:
                self._end_gap()
                self._seen += 1
            if not event.is_annotation:
                self._open.append(_Open(event))
                self._operators_open += event.name is not None
        self._close_until(None)
        self._end_gap()
        return self._out

    def _close_until(self, at_ns: int | None) -> None:
        while self._open and (at_ns is None or self._open[-1].event.end_ns <= at_ns):
            ended = self._open[-1]
            self._pass(ended.event.end_ns, coming=None)
            self._operators_open -= self._open.pop().event.name is not None
            if ended.event.name is None:
                self._count_call(ended.stack if ended.stack is not None else ended.event.own_stack)

    def _pass(self, until_ns: int, *, coming: Event | None) -> None:
        top = self._open[-1] if self._open else None
        if top is not None and not self._operators_open and not top.event.is_ours and until_ns > self._now_ns:
            before = top.stack if top.stack is not None else coming.stack if coming is not None else top.event.own_stack
            self._gap[before] = self._gap.get(before, 0) + until_ns - self._now_ns
        if top is not None and coming is not None:
            top.stack = coming.stack
            self._count_call(coming.stack)
        self._now_ns = max(self._now_ns, until_ns)

    def _count_call(self, stack: int) -> None:
        if not self._operators_open:
            self._calls[stack] = self._calls.get(stack, 0) + 1

    def _end_gap(self) -> None:
        if self._gap:
            largest = max(self._gap, key=lambda stack: self._gap[stack])
            kept = {s: ns for s, ns in self._gap.items() if ns >= 1_000 or s == largest}
            self._out += [(self._seen, stack, ns, self._calls.get(stack, 0)) for stack, ns in kept.items()]
        self._gap, self._calls = {}, {}


# The text of the user's files that occur in frames, copied to where the helper takes it into the run folder.


def _copy_source(files: Iterable[str], root: str, folder: Path) -> list[str]:
    kept: list[str] = []
    left_bytes = MAX_SOURCE_BYTES
    for file in files:
        if Path(file).is_absolute() or ".." in Path(file).parts:
            continue
        text = _text_of(file, root)
        if text is None or len(text) > min(left_bytes, MAX_SOURCE_FILE_BYTES):
            continue
        target = folder / file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text)
        left_bytes -= len(text)
        kept.append(file)
    return kept


def _text_of(file: str, root: str) -> bytes | None:
    if file.startswith("<"):
        return "".join(linecache.getlines(file)).encode() or None
    try:
        path = Path(root) / file
        return path.read_bytes() if path.stat().st_size <= MAX_SOURCE_FILE_BYTES else None
    except OSError:
        return None


# Module objects -> their paths in the model, as the user would write them: `layers.3.attn`.
#
# What wraps a model or a layer (DDP, FSDP, torch.compile, activation checkpointing) is left out of the path. The model
# with the most parameters is the root, with an empty path; modules outside it (a loss, a second model) begin with the
# name of their class.

_WRAPPERS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
_WRAPS = (
    "DistributedDataParallel",
    "DataParallel",
    "OptimizedModule",
    "FullyShardedDataParallel",
    "CheckpointWrapper",
    "DeepSpeedEngine",
)


def _paths_of_modules(called: Iterable[int], *, model: "torch.nn.Module | None") -> dict[int, str]:
    wanted = set(called)
    found = [found for found in gc.get_objects() if issubclass(type(found), torch.nn.Module)]
    alive = {id(module): module for module in (*found, *(model.modules() if model is not None else ()))}
    inner = {id(child) for module in alive.values() for child in module._modules.values() if child is not None}
    outermost = [module for key, module in alive.items() if key not in inner]
    tops = [module for module in outermost if any(id(part) in wanted for part in module.modules())]
    tops.sort(key=lambda module: -sum(p.numel() for p in module.parameters()))
    out: dict[int, str] = {}
    for i, top in enumerate(tops):
        prefix = "" if i == 0 and any(True for _ in top.parameters()) else type(_unwrapped(top)).__name__
        for name, module in top.named_modules():
            if id(module) in wanted and id(module) not in out:
                out[id(module)] = ".".join(part for part in (prefix, _plain_path(top, name)) if part)
    return out


def _plain_path(top: torch.nn.Module, name: str) -> str:
    kept: list[str] = []
    at: object = top
    for part in name.split(".") if name else []:
        if not (part in _WRAPPERS and _is_wrapper(at)):
            kept.append(part)
        at = getattr(at, "_modules", {}).get(part)
    return ".".join(kept)


def _is_wrapper(module: object) -> bool:
    return any(kind.__name__ in _WRAPS for kind in type(module).__mro__)


def _unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    while _is_wrapper(module):
        inner = next((module._modules.get(name) for name in _WRAPPERS if module._modules.get(name) is not None), None)
        if inner is None:
            break
        module = inner
    return module


# DDP's gradient buckets -> the parameters in them, in the order in which DDP reduces them.


def _buckets_of(ddp: Any) -> tuple[list[list[str]] | None, str | None]:
    if ddp is None:
        return None, "no DistributedDataParallel model was seen"
    try:
        told = str(dict(ddp._get_ddp_logging_data()).get("rebuilt_per_bucket_param_indices", ""))
        indices = [[int(i) for i in bucket.split()] for bucket in told.split(",") if bucket.strip()]
    except (AttributeError, RuntimeError, ValueError, TypeError) as e:
        return None, f"this torch does not report its buckets ({type(e).__name__})"
    ignored = set(getattr(ddp, "parameters_to_ignore", ()))
    named = ddp.module.named_parameters()
    names = [_plain_path(ddp.module, name) for name, p in named if p.requires_grad and name not in ignored]
    if not indices:
        return (
            None,
            "DDP reports only rebuilt buckets, and has not rebuilt them (static order, or unused parameters)",
        )
    if max(map(max, indices)) >= len(names):
        return None, "DDP's buckets and the model's parameters do not fit together"
    return [[names[i] for i in bucket] for bucket in indices], None


def _ddp_in(model: "torch.nn.Module | None") -> Any:
    kind = torch.nn.parallel.DistributedDataParallel
    return next((m for m in model.modules() if isinstance(m, kind)), None) if model is not None else None


_MARK = "ProfilerStep#"


class FrameStep(WatchedStep):
    """Watches one step with frames: `begin()`, `end()`, then `owners()` reads what was seen."""

    def __init__(
        self,
        guard: ProfilerGuard,
        config: RecordConfig,
        usual: TypicalStep,
        *,
        step: int,
        on_cut_short: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(guard, config, usual, purpose="show its lines", with_stack=True)
        self.step = step
        self._on_cut_short = on_cut_short
        self._mark: Any = None
        self._places = Places()
        self.lines = LineTimes(config.max_events // 2, self._user_path)

    def begin(self) -> None:
        """Start watching, and mark the step as those of the window are."""
        self.why_not = why_not_traced()
        if self.why_not is not None:
            return
        super().begin()
        if self.is_on:
            self._mark = torch.profiler.record_function(f"{_MARK}{self.step}")
            self._mark.__enter__()
            self.lines.begin()

    def end(self) -> Any:
        """Return the profiler's results, None where the step could not be watched."""
        self.lines.end()
        return super().end()

    def give_way(self) -> None:
        """Stop at once: the user starts a profiler of their own, in which no mark of ours may end."""
        super().give_way()
        self._cut_short()

    def stop(self, why_not: str) -> None:
        """Stop at once and keep nothing."""
        super().stop(why_not)
        self._cut_short()

    def _user_path(self, name: str) -> str | None:
        path, kind = self._places.of(name)
        return path if kind == USER else None

    def _cut_short(self) -> None:
        self.lines.end()
        self._mark = None
        self._on_cut_short()

    def end_mark(self) -> None:
        self.lines.end()
        mark, self._mark = self._mark, None
        if mark is not None and self.is_on:
            mark.__exit__(None, None, None)


def owners_of(
    results: Any,
    *,
    step: int,
    rank: int,
    model: "torch.nn.Module | None",
    max_events: int,
    loader: Mapping[Line, int] | None = None,
    lines: LineTimes | None = None,
) -> tuple[Owners, list[str]]:
    """Return what the frames of a step say, and the user's files in it; `loader` has samples of workers by line."""
    collects = gc.isenabled()
    gc.disable()  # tens of thousands of new objects, none of them garbage
    try:
        return _owners(results, step, rank, model, max_events, loader or {}, lines)
    finally:
        if collects:
            gc.enable()


def _owners(
    results: Any,
    step: int,
    rank: int,
    model: "torch.nn.Module | None",
    max_events: int,
    loader: Mapping[Line, int],
    line_times: LineTimes | None,
) -> tuple[Owners, list[str]]:
    stacks, lines, events = _read(results, line_times, max_events=max_events)
    paths = _paths_of_modules({e.module for e in events if e.module is not None}, model=model)
    modules, names, used = _Numbers(), _Numbers(), _Numbers()
    mark = f"{_MARK}{step}"
    threads = _threads_of(
        events,
        step=step,
        training_thread=next((e.thread for e in events if e.name == mark), events[0].thread if events else 0),
        stack_number=lambda stack: used.of(stack) if stack != EMPTY else NONE,
        module_number=lambda module: modules.of(paths[module]) if module in paths else NONE,
        name_number=names.of,
    )
    table = stacks.table(used.values())
    buckets, why_no_buckets = _buckets_of(_ddp_in(model))
    shares, ambiguous = loader_shares(loader, table.root), sorted(stacks.places.ambiguous)[:20]
    too_few = "no forked loader worker ran a line of the user's while it was sampled, or ran too briefly"
    reasons = {
        "loader": too_few if shares is None else None,
        "buckets": why_no_buckets,
        "files": f"several files fit these names: {', '.join(ambiguous)}" if ambiguous else None,
    }
    owners: Owners = {
        "schema": OWNERS_SCHEMA,
        "rank": rank,
        "torch": str(torch.__version__),
        "steps": [step],
        "lines": lines,
        "root": table.root,
        "files": table.files,
        "frames": table.frames,
        "stacks": table.stacks,
        "modules": modules.values(),
        "names": names.values(),
        "threads": threads,
        "source_files": [],
        "buckets": buckets,
        "loader": shares,
        "reasons": {what: why for what, why in reasons.items() if why is not None},
    }
    sampled = sorted({file for file, _ in loader if shares is not None and Path(file).is_absolute()})
    return owners, list(dict.fromkeys([*table.user_files, *sampled]))


def loader_shares(samples: Mapping[Line, int], root: str) -> list[list[str | float]] | None:
    """Return lines of the dataset with their shares of the workers' samples, None where those are too few."""
    total = sum(samples.values())
    if total < 5:
        return None
    largest = sorted(samples.items(), key=lambda item: (-item[1], item[0]))[:20]
    return [[f"{below(file, root)}:{line}", count / total] for (file, line), count in largest]


def _read(
    results: Any, lines: LineTimes | None, *, max_events: int
) -> tuple[Stacks, Literal["executing", "functions"], list[Event]]:
    stacks = Stacks(Places())
    try:
        return stacks, EXECUTING, walked(results.experimental_event_tree(), stacks, max_events=max_events, lines=lines)
    except (AttributeError, TypeError):  # private API
        stacks = Stacks(Places())
        return stacks, FUNCTIONS, walked(_function_tree(results.events()), stacks, max_events=max_events)


def write_owners(
    owners: Owners, user_files: list[str], folder: Path, *, with_source: bool
) -> tuple[Path, dict[str, Path]]:
    """Write the file and copies of the source to `folder`; return where, source files by their names in the run."""
    source: dict[str, Path] = {}
    if with_source:
        owners["source_files"] = _copy_source(user_files, owners["root"], folder / "source")
        source = {name: folder / "source" / name for name in owners["source_files"]}
    plain = folder / "owners.json"
    plain.write_text(json.dumps(owners, separators=(",", ":")))
    return plain, source


class _Numbers:
    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}

    def of(self, value: Any) -> int:
        return self._numbers.setdefault(value, len(self._numbers))

    def values(self) -> list[Any]:
        return list(self._numbers)
