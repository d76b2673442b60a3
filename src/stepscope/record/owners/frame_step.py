"""One step with Python frames, after the window: watched, read and written down for the helper; in no timing.

The step has the same marks as those of the window (its own, and the regions), so that operators of the two correspond.
"""

import gc
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch

from stepscope.contract.owners import EXECUTING, FUNCTIONS, NONE, OWNERS_SCHEMA, Owners
from stepscope.record.config import RecordConfig
from stepscope.record.owners.buckets import buckets_of, ddp_in
from stepscope.record.owners.call_count import why_not_traced
from stepscope.record.owners.event_tree import Event, walked
from stepscope.record.owners.function_events import function_tree
from stepscope.record.owners.loader_samples import Line
from stepscope.record.owners.module_paths import paths_of_modules
from stepscope.record.owners.places import Places
from stepscope.record.owners.source import copy_source
from stepscope.record.owners.stacks import EMPTY, Stacks, below
from stepscope.record.owners.threads import threads_of
from stepscope.record.window.budget import TypicalStep
from stepscope.record.window.profiler_guard import ProfilerGuard
from stepscope.record.window.watched_step import WatchedStep

_MARK = "ProfilerStep#"
_MIN_SAMPLES = 5
_MAX_LOADER_LINES = 20
_LOADER = "no forked loader worker ran a line of the user's while it was sampled, or for too short a time to tell"


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

    def begin(self) -> None:
        """Start watching, and mark the step as those of the window are."""
        self.why_not = why_not_traced()
        if self.why_not is not None:
            return
        super().begin()
        if self.is_on:
            self._mark = torch.profiler.record_function(f"{_MARK}{self.step}")
            self._mark.__enter__()

    def give_way(self) -> None:
        """Stop at once: the user starts a profiler of their own, in which no mark of ours may end."""
        super().give_way()
        self._cut_short()

    def stop(self, why_not: str) -> None:
        """Stop at once and keep nothing."""
        super().stop(why_not)
        self._cut_short()

    def _cut_short(self) -> None:
        """Leave no mark open: one that ends in another session crashes the process."""
        self._mark = None
        self._on_cut_short()

    def end_mark(self) -> None:
        """End the step's own mark: the step is over."""
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
) -> tuple[Owners, list[str]]:
    """Return what the frames of a step say, and the user's files in it; `loader` has samples of workers by line."""
    collects = gc.isenabled()
    gc.disable()  # tens of thousands of new objects, none of them garbage
    try:
        return _owners(results, step=step, rank=rank, model=model, max_events=max_events, loader=loader or {})
    finally:
        if collects:
            gc.enable()


def _owners(
    results: Any,
    *,
    step: int,
    rank: int,
    model: "torch.nn.Module | None",
    max_events: int,
    loader: Mapping[Line, int],
) -> tuple[Owners, list[str]]:
    stacks, lines, events = _read(results, max_events=max_events)
    paths = paths_of_modules({e.module for e in events if e.module is not None}, model=model)
    modules, names, used = _Numbers(), _Numbers(), _Numbers()
    threads = threads_of(
        events,
        step=step,
        training_thread=_training_thread(events, step),
        stack_number=lambda stack: used.of(stack) if stack != EMPTY else NONE,
        module_number=lambda module: modules.of(paths[module]) if module in paths else NONE,
        name_number=names.of,
    )
    table = stacks.table(used.values())
    buckets, why_no_buckets = buckets_of(ddp_in(model))
    reasons: dict[str, str] = {}
    shares = loader_shares(loader, table.root)
    if shares is None:
        reasons["loader"] = _LOADER
    if why_no_buckets is not None:
        reasons["buckets"] = why_no_buckets
    if stacks.places.ambiguous:
        reasons["files"] = f"several files fit these names: {', '.join(sorted(stacks.places.ambiguous)[:20])}"
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
        "reasons": reasons,
    }
    sampled = sorted({file for file, _ in loader if shares is not None and Path(file).is_absolute()})
    return owners, list(dict.fromkeys([*table.user_files, *sampled]))


def loader_shares(samples: Mapping[Line, int], root: str) -> list[list[str | float]] | None:
    """Return lines of the dataset with their shares of the workers' samples, None where those are too few."""
    total = sum(samples.values())
    if total < _MIN_SAMPLES:
        return None
    largest = sorted(samples.items(), key=lambda item: (-item[1], item[0]))[:_MAX_LOADER_LINES]
    return [[f"{below(file, root)}:{line}", count / total] for (file, line), count in largest]


def _read(results: Any, *, max_events: int) -> tuple[Stacks, Literal["executing", "functions"], list[Event]]:
    """Return the events with executing lines, or with those of definitions where this torch has no event tree."""
    stacks = Stacks(Places())
    try:
        return stacks, EXECUTING, walked(results.experimental_event_tree(), stacks, max_events=max_events)
    except (AttributeError, TypeError):  # private API
        stacks = Stacks(Places())
        return stacks, FUNCTIONS, walked(function_tree(results.events()), stacks, max_events=max_events)


def write_owners(
    owners: Owners, user_files: list[str], folder: Path, *, with_source: bool
) -> tuple[Path, dict[str, Path]]:
    """Write the file and copies of the source to `folder`; return where, source files by their names in the run."""
    source: dict[str, Path] = {}
    if with_source:
        owners["source_files"] = copy_source(user_files, owners["root"], folder / "source")
        source = {name: folder / "source" / name for name in owners["source_files"]}
    plain = folder / "owners.json"
    plain.write_text(json.dumps(owners, separators=(",", ":")))
    return plain, source


class _Numbers:
    """Numbers values in the order in which they come."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}

    def of(self, value: Any) -> int:
        return self._numbers.setdefault(value, len(self._numbers))

    def values(self) -> list[Any]:
        return list(self._numbers)


def _training_thread(events: list[Event], step: int) -> int:
    """Return the thread that has the step's mark."""
    mark = f"{_MARK}{step}"
    return next((event.thread for event in events if event.name == mark), events[0].thread if events else 0)
