"""Files into one `Run`: find them, read them on all cores, know whose they are, say what is missing."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from stepscope.contract.run_folder import RUN_JSON, rank_file
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.run.collectives.flight import FLIGHT_RECORDER
from stepscope.run.imports.one_recording import one_recording_each
from stepscope.run.measured_kernels import MeasuredLaunches, measured_launches
from stepscope.run.owners import RankOwners, read_owners
from stepscope.run.quality import cut_off, quality_warnings, rank_ranges
from stepscope.run.rank import Rank, believable_world, rank_of_trace
from stepscope.run.reading.each_file import Progress, source_reader
from stepscope.run.reading.pulled_window import pulled_window, steps_it_stands_for
from stepscope.run.reading.told_apart import refuse_double_ranks, sorted_out, with_parts_joined, without_repeats
from stepscope.run.side_files import SideFiles, is_later_window, side_files, window_number
from stepscope.run.source_text import SourceText
from stepscope.run.sources import Sources, find_sources
from stepscope.run.step_log import PASSES_NS, StepLog, UnprofiledStep, readable_step_logs, unprofiled_step
from stepscope.run.step_search.unmarked_steps import with_derived_steps
from stepscope.run.unread_events import unread_lines
from stepscope.side_file import read_side_json, unusable_fields
from stepscope.trace.cache import WriteLater
from stepscope.trace.freed_memory import return_freed
from stepscope.trace.table import Trace

MAX_JOBS = 256
"""threads; more than that no machine has cores for, and some refuse to start"""
MAX_FULL_RANKS = 128
"""a run of more ranks is not kept in memory as a whole, unless that is asked for (`analyze/sampled`)"""
_MAX_NAMED = 3


@dataclass(frozen=True, eq=False, repr=False)
class Run(ArrayRecord):
    """All ranks of one job that could be read."""

    name: str
    ranks: tuple[Rank, ...]
    """by rank number"""
    description: dict[str, Any] = field(default_factory=dict)
    """`run.json`, empty for a job recorded by somebody else"""
    logs: tuple[StepLog, ...] = ()
    """step logs of a run folder, by rank"""
    beside: SideFiles = field(default_factory=SideFiles)
    """telemetry, live collectives, memory and NCCL's log, where the recorder left them"""
    owners: tuple[RankOwners, ...] = ()
    """who did what, of the ranks that recorded it"""
    source: SourceText = field(default_factory=SourceText)
    """the user's source files, where the recorder kept them"""
    measured: tuple[MeasuredLaunches, ...] = ()
    """kernels as Nsight Compute measured them"""
    unreadable: tuple[str, ...] = ()
    """one line per rank that could not be read at all"""
    warnings: tuple[str, ...] = ()
    window: int = 0
    """which of the job's profiled windows this is, from 0"""
    jobs: int = 1
    """ranks that are worked on at once"""
    everyone: "Run | None" = None
    """the same run with all its ranks, of which only what the others need was kept; None where `ranks` are all"""
    sampling: str = ""
    """which of the ranks `ranks` are, and what is said of the others; empty where they are all"""
    shown_path: Callable[[str], str] = str
    """how a file of the run is named: by its path, or by the address it was copied from"""

    @property
    def world_size(self) -> int | None:
        """Return the number of ranks in the job, None where no file says it."""
        said = [*(r.world_size for r in self.ranks), believable_world(self.description.get("world_size"))]
        known = [n for n in said if n is not None]
        return max(known) if known else (1 if len(self.ranks) == 1 and not self.unreadable else None)

    @property
    def asked_by(self) -> str | None:
        """Return who asked for this window while the job ran, a command or an alarm; None for one of the settings."""
        found = pulled_window(self.description, self.window)
        return found.by if found is not None else None

    @property
    def ranks_read(self) -> tuple[Rank, ...]:
        """Return all ranks that were read: in full, or what was kept of them."""
        return self.everyone.ranks if self.everyone else self.ranks

    @cached_property
    def unprofiled(self) -> UnprofiledStep | None:
        """Return the step's time without the profiler by the step logs, None without such steps."""
        return unprofiled_step(self.logs)


def load(
    given: str | Path | Sequence[str | Path],
    *,
    jobs: int | None = None,
    cache: bool = True,
    cache_folder: Path | None = None,
    progress: Progress | None = None,
) -> Run:
    """Return the run in a file, a folder, a glob or a list of them.

    `jobs` is the number of files read at once (all cores by default); a single file is parsed on that many
    threads. A rank that cannot be read is named in `unreadable`; if none can, that is an `InputError`.
    """
    sources = find_sources(given)
    name = run_name(given, sources.folder)
    return load_sources(sources, name=name, jobs=jobs, cache=cache, cache_folder=cache_folder, progress=progress)


def load_sources(
    sources: Sources,
    *,
    name: str,
    jobs: int | None = None,
    cache: bool = True,
    cache_folder: Path | None = None,
    progress: Progress | None = None,
    everyone: Sequence[Rank] = (),
    sampling: str = "",
    write_later: WriteLater | None = None,
) -> Run:
    """Return the run in these files, as `load` does; where they are of some of its ranks, `everyone` are all of them
    as far as they were kept, and `sampling` says so. `write_later` takes the writing of caches.
    """
    files, folder = sources.files, sources.folder
    jobs = min(jobs or os.cpu_count() or 1, MAX_JOBS)
    read = source_reader(
        files, jobs=jobs, cache=cache, cache_folder=cache_folder, progress=progress, write_later=write_later
    )
    with ThreadPoolExecutor(max_workers=min(jobs, len(files))) as pool:
        results = list(pool.map(read, files))
        traces, unreadable, warnings = sorted_out(results)
        traces, repeated = without_repeats(traces)
        traces, in_parts = with_parts_joined(traces)
        traces, known, set_aside = one_recording_each(traces, folder)
        refuse_double_ranks(traces, known)
        ranks = list(pool.map(lambda pair: _rank(*pair), zip(traces, known, strict=True)))
    return_freed(sum(trace.raw_bytes for trace in traces))
    ranks = with_derived_steps(sorted(ranks, key=lambda r: r.rank))
    about = _run_folder(folder)
    description, damaged = run_description(about)
    logs, lost = readable_step_logs(about) if about else ((), [])
    window = window_number(folder.resolve()) if folder is not None else 0
    logs, description, since = steps_it_stands_for(logs, description, pulled_window(description, window))
    in_words: list[str] = []
    # Ranks that are only outlined cannot be put into other steps.
    if not everyone and any(PASSES_NS in log.numbers for log in logs):
        from stepscope.run.step_search.rounds import in_rounds  # few jobs have such passes

        ranks, logs, description, in_words = in_rounds(ranks, logs, description)
    read_here = {source.path.name for source in files if source.path.parent == about}
    owners, refused = read_owners(about, [r.rank for r in ranks]) if about else ((), [])
    measured, faults = measured_launches(about, but=read_here) if about else ((), [])
    run = Run(
        name=name,
        ranks=tuple(ranks),
        description=description,
        logs=logs,
        beside=side_files(about, but=read_here) if about else SideFiles(),
        owners=owners,
        source=SourceText(about),
        measured=measured,
        unreadable=tuple(unreadable),
        window=window,
        jobs=jobs,
        sampling=sampling,
    )
    if everyone:
        run = replace(run, everyone=replace(run, ranks=tuple(everyone), sampling=""))
    beside = [*damaged, *lost, *since, *in_words, *refused, *faults, *_beside_warnings(run, folder)]
    lines = [*warnings, *sources.repeated, *repeated, *in_parts, *set_aside, *beside]
    return _with_warnings(run, lines)


def _run_folder(folder: Path | None) -> Path | None:
    """Return where the run's description and logs lie: around the folder of a second or later window."""
    if folder is not None and is_later_window(folder.resolve()) and (folder.resolve().parent / RUN_JSON).is_file():
        return folder.resolve().parent
    return folder


def _beside_warnings(run: Run, folder: Path | None) -> list[str]:
    """Return which windows are not read here, and what was lost of the files beside the traces."""
    lines = []
    others = [w for w in run.beside.windows if folder is None or w.resolve() != folder.resolve()]
    if others:
        names = ", ".join(_named_window(run, window) for window in others)
        which = "it" if len(others) == 1 else "each"
        lines.append(
            f"{names} of this run hold later profiled windows that are not in this report: "
            f"read {which} with stepscope report {others[0]}"
        )
    if run.beside.lost_lines:
        lines.append(
            f"{run.beside.lost_lines} damaged lines beside the traces (telemetry, collectives, memory) left out"
        )
    unread = run.beside.unread
    if unread:
        more = f"; and {len(unread) - _MAX_NAMED} more" if len(unread) > _MAX_NAMED else ""
        lines.append(f"not all beside the traces was read: {'; '.join(unread[:_MAX_NAMED])}{more}")
    return lines


def _named_window(run: Run, folder: Path) -> str:
    pulled = pulled_window(run.description, window_number(folder))
    return folder.name if pulled is None else f"{folder.name} (pulled by: {pulled.by})"


def _rank(trace: Trace, known: tuple[int, str]) -> Rank:
    rank, rank_source = known
    beside = Path(trace.path).parent / rank_file(rank, FLIGHT_RECORDER)
    return rank_of_trace(trace, rank=rank, rank_source=rank_source, flight_file=beside)


def run_name(given: str | Path | Sequence[str | Path], folder: Path | None) -> str:
    """Return what a run is called: by its folder, else by its first file."""
    if folder is not None:
        return folder.resolve().name
    first = given if isinstance(given, str | Path) else given[0]
    return Path(first).name


def run_description(folder: Path | None) -> tuple[dict[str, Any], list[str]]:
    """Return `run.json` of a run folder, empty where there is none, and a line where it cannot be used."""
    if folder is None:
        return {}, []
    why = "damaged"
    try:
        parsed = read_side_json(folder / RUN_JSON)
        if isinstance(parsed.value, dict):
            return parsed.value, unusable_fields(parsed, RUN_JSON)
    except FileNotFoundError:
        return {}, []
    except OSError as error:
        why = f"unreadable ({error.strerror})"
    except ValueError:
        pass
    return {}, [f"{RUN_JSON} is {why}: what it says of the run (FLOPs, unprofiled steps, configuration) is unknown"]


def incomplete(run: Run) -> list[str]:
    """Return what of the run was not read: ranks not in full, lost, missing, or cut off."""
    return [*_sampled(run), *_lost(run), *_missing(run), *cut_off(run.ranks_read)]


def _sampled(run: Run) -> list[str]:
    return [run.sampling] if run.sampling else []


def _lost(run: Run) -> list[str]:
    return [f"rank lost: {line}" for line in run.unreadable]


def _missing(run: Run) -> list[str]:
    present = {r.rank for r in run.ranks_read}
    missing = [n for n in range(run.world_size or 0) if n not in present]
    if len(present) >= (run.world_size or 0):  # the files are numbered otherwise than the job numbers its ranks
        missing = []
    doubt = "what they did is unknown, and waiting for them looks like transfer"
    return [f"ranks missing: {rank_ranges(missing)} of {run.world_size}; {doubt}"] if missing else []


def _with_warnings(run: Run, warnings: list[str]) -> Run:
    lines = [*_sampled(run), *warnings, *_said_by_recorder(run), *_lost(run), *_worlds(run), *_missing(run)]
    guessed = [r.rank for r in run.ranks_read if r.rank_source == "order"]
    if guessed and len(run.ranks) > 1:
        lines.append(f"rank numbers of {rank_ranges(guessed)} are by order: neither the file nor its name says them")
    lines += [*quality_warnings(run.ranks_read), *unread_lines(run.ranks), *_unseen_devices(run)]
    return replace(run, warnings=tuple(lines))


def _unseen_devices(run: Run) -> list[str]:
    """Return a line where work was launched on a device and nothing of the device was recorded."""
    unseen = [r for r in run.ranks_read if r.device_unseen]
    if not unseen:
        return []
    launches, which = sum(r.joins.launches_without_work for r in unseen), rank_ranges([r.rank for r in unseen])
    return [
        f"the device of rank {which} was not recorded ({launches:,} launches, no kernel): "
        "what is said is of the host alone, what the device did is unknown; record with ProfilerActivity.CUDA"
    ]


def _said_by_recorder(run: Run) -> list[str]:
    """Return what the recorder itself found doubtful."""
    said = (run.description or {}).get("warnings")
    return [line for line in said if isinstance(line, str)] if isinstance(said, list) else []


def _worlds(run: Run) -> list[str]:
    """Return a line where ranks disagree on how many there are: traces of two jobs lie together."""
    said: dict[int, list[int]] = {}
    for rank in run.ranks_read:
        if rank.world_size is not None:
            said.setdefault(rank.world_size, []).append(rank.rank)
    if len(said) < 2:
        return []
    listed = "; ".join(f"{world} say rank {rank_ranges(ranks)}" for world, ranks in sorted(said.items()))
    return [f"the traces disagree on the number of ranks ({listed}): they are of different jobs"]
