"""The run that a command line names: read, analysed, cached, copied from an address or read by a cluster.

Cached results need no analysis, so heavy modules are imported only where they are used.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.additions import RESULTS
from stepscope.cache_files import begin as begin_writing, write_later
from stepscope.cli.outputs import reading_progress, warn, work_progress
from stepscope.contract.run_folder import RUN_JSON, json_object_in
from stepscope.errors import InputError, StepscopeError, UsageError

if TYPE_CHECKING:
    from stepscope.analyze.account import Account
    from stepscope.analyze.collective_costs import OutlinedRank
    from stepscope.analyze.sampled import Arguments, OutlineFiles
    from stepscope.document.cache import KeptPlace
    from stepscope.report.html.assemble import Page
    from stepscope.report.pages.history import RunEntry
    from stepscope.run.load import Run

_ACCOUNT_OPTIONS = ("flops_per_step", "tokens_per_step", "samples_per_step", "peak_tflops", "full_ranks")
# arguments that may be the address of a run
_RUN_ARGUMENTS = ("run", "sides", "a", "b", "dumps", "folder", "against")
_WRITES_INTO_THE_RUN = {"investigate": "writes its record into the run", "import": "writes into the run"}


def account_from(
    args: argparse.Namespace, run: list[str] | None = None, *, unprofiled_ms: float | None = None
) -> "Account":
    """Return the account of the arguments' run, or of another one with the same options and its own unprofiled step."""
    return account_with(args, run_from(args, run), unprofiled_ms=unprofiled_ms if run else args.unprofiled_step_ms)


def run_from(args: argparse.Namespace, run: list[str] | None = None) -> "Run":
    """Return the arguments' run, or another one read in the same way."""
    from stepscope.run.load import MAX_FULL_RANKS, load_sources, run_name
    from stepscope.run.sources import find_sources
    from stepscope.trace.read import keep_freed

    keep_freed()
    given = run or args.run
    on_cluster = getattr(args, "engine", "local") != "local"
    full_ranks = getattr(args, "full_ranks", None)
    how = {"jobs": args.jobs, "cache": not args.no_cache, "cache_folder": args.cache_folder}
    sources = find_sources(given)
    if len(sources.files) > (full_ranks or MAX_FULL_RANKS):
        from stepscope.analyze.sampled import load_run

        one = getattr(args, "rank", None)
        how |= {"full_ranks": full_ranks, "outline_files": _outlines_from(args) if on_cluster else None}
        how["wanted"] = frozenset(getattr(args, "ranks", None) or ()) | ({one} if one is not None else frozenset())
        with reading_progress() as progress:
            found = load_run(given, progress=progress, **how)
    else:
        if on_cluster:
            _read_on_cluster(args, [source.path for source in sources.files])
        with reading_progress() as progress:
            name = run_name(given, sources.folder)
            found = load_sources(sources, name=name, progress=progress, write_later=write_later, **how)
    return as_given(args, found)


def account_with(args: argparse.Namespace, run: "Run", *, unprofiled_ms: float | None) -> "Account":
    """Return the account of a run with the options of the command line."""
    from stepscope.analyze.account import account_of
    from stepscope.analyze.efficiency import GivenValues
    from stepscope.cost.chips import load_chips

    if args.capture:
        from stepscope.run.load import read_captures

        run = replace(run, captures=(*run.captures, *read_captures(args.capture)))
    names = ("flops_per_step", "tokens_per_step", "samples_per_step", "peak_tflops")
    account = account_of(
        run,
        given=GivenValues(**{name: getattr(args, name) for name in names}),
        unprofiled_ms=unprofiled_ms,
        chips=load_chips(args.hardware) if args.hardware else (),
    )
    begin_writing()
    return account


def warn_incomplete(account: "Account") -> int:
    """Return 0, or 3 if a rank could not be read; warn about what was not read or not analysed."""
    from stepscope.run.load import incomplete

    warn(*incomplete(account.run), *account.late_warnings)
    return 3 if account.run.unreadable else 0


def kind_of_input(given: list[str]) -> str:
    """Return what was given: one `run`, a folder of `runs`, `results`, or without traces `steps` or `files`.

    `files` are those of other tools.
    """
    from stepscope.run.sources import folder_of_runs, has_steps_only, is_without_traces

    if has_steps_only(given):
        return "steps"
    if len(given) > 1:
        return "run"
    if opener_of(given[0]):
        return "results"
    if folder_of_runs(given[0]):
        return "runs"
    if is_without_traces(given[0]):
        from stepscope.run.formats import files_beside

        return "files" if files_beside(Path(given[0])) else "run"
    return "run"


def opener_of(folder: str) -> Any:
    """Return the module that opens the results in a folder, None where there are none that a room added."""
    from stepscope.run.sources import RESULTS_JSON

    file = Path(folder) / RESULTS_JSON
    if not file.is_file():
        return None
    kind = str(json_object_in(file).get("kind"))
    return import_module(RESULTS[kind]) if kind in RESULTS else None


def run_entries(args: argparse.Namespace, folder: str) -> "list[RunEntry]":
    """Return the runs of a folder with their reports, in the order in which they were made."""
    from stepscope.diagnose.findings import diagnose
    from stepscope.document.light import light_json
    from stepscope.document.report import report_json
    from stepscope.report.pages.history import RunEntry, in_order
    from stepscope.run.light import load_light
    from stepscope.run.load import run_description
    from stepscope.run.sources import folder_of_runs, has_steps_only

    def entry(folder: Path) -> RunEntry:
        created = run_description(folder)[0].get("created")
        made = created if isinstance(created, str) else None
        try:
            if has_steps_only([folder]):
                return RunEntry(folder.name, made, light_json(load_light(folder)))
            account = account_from(args, [str(folder)])
            return RunEntry(folder.name, made, report_json(account, diagnose(account)))
        except InputError as error:
            return RunEntry(folder.name, made, None, str(error))

    return in_order([entry(run) for run in folder_of_runs(folder)])


# Cached results

_CALIBRATION = "calibration.json"


def cache_key(args: argparse.Namespace, given: list[str] | str) -> dict[str, Any] | None:
    """Return what cached results of a run depend on and where they are; None if nothing may be cached."""
    if args.no_cache or args.hardware or args.capture:
        return None
    unprofiled = args.unprofiled_step_ms if given == args.run else None
    options = {"unprofiled_step_ms": unprofiled, **{name: getattr(args, name) for name in _ACCOUNT_OPTIONS}}
    return {"options": options, "cache_folder": args.cache_folder}


def report_of(
    args: argparse.Namespace, *, make_page: "Callable[[Account, dict[str, Any]], Page] | None" = None
) -> "tuple[dict[str, Any], Page | None]":
    """Return the `document` and `exit_code` of the arguments' run, cached unless a page is to be made of it."""
    from stepscope.document.cache import kept_place

    how = cache_key(args, args.run)
    place = kept_place(args.run, ending="report", **how) if how else None
    found = place.found() if place and make_page is None else None
    if found is not None:
        return found, None
    from stepscope.diagnose.findings import diagnose
    from stepscope.document.report import report_json

    key = place.key() if place else None
    account = account_from(args)
    diagnosis = diagnose(account)
    document = report_json(account, diagnosis, details=make_page is not None)
    page = make_page(account, document) if make_page else None
    document.pop("details", None)
    report = {"exit_code": 3 if account.run.unreadable else 0, "document": document}
    if place and not account.failures:
        place.keep(report, key=key, raw_bytes=raw_bytes_of(account.run))
    return report, page


def cached_page(args: argparse.Namespace, given: list[str]) -> "Page | None":
    """Return the cached page of a run, None if there is none."""
    from stepscope.report.html.assemble import Page

    place = _page_place(args, given)
    found = place.found() if place else None
    return None if found is None else Page(found["name"], found["is_partial"], found["data"], found["in_words"])


def page_maker(args: argparse.Namespace, given: list[str]) -> "Callable[[Account, dict[str, Any]], Page]":
    """Return a function that makes the page of a run, and caches it if the run has not changed since this call."""
    place = _page_place(args, given)
    key = place.key() if place else None

    def made(account: "Account", document: dict[str, Any]) -> "Page":
        from stepscope.cost.calibration import load_calibration
        from stepscope.report.html.page import page_of_run

        file = args.calibration or Path(account.run.ranks[0].trace.path).parent / _CALIBRATION
        calibration = load_calibration(file) if args.calibration or file.is_file() else None
        page = page_of_run(account, document, calibration=calibration)
        if place:
            place.keep(vars(page), key=key, raw_bytes=raw_bytes_of(account.run))
        return page

    return made


def _page_place(args: argparse.Namespace, given: list[str]) -> "KeptPlace | None":
    from stepscope.cache_files import content_key
    from stepscope.document.cache import KeptPlace, kept_place

    key = cache_key(args, given)
    place = kept_place(given, ending="page", **key) if key else None
    if place is None or key is None:
        return None
    used = [Path(args.calibration)] if args.calibration else [folder / _CALIBRATION for folder in place.folders]
    measured = {str(path): content_key(path) for path in used}
    return KeptPlace(place.path, place.given, {**key["options"], "calibration": measured})


def raw_bytes_of(run: "Run") -> int:
    """Return the size of the JSON that a run was read from."""
    return sum(rank.trace.raw_bytes for rank in run.ranks_read)


# Runs at addresses


def run_on_copies(name: str, command: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    """Return the exit code of a command whose runs are addresses, on temporary copies of their files."""
    from stepscope.run.address import is_address
    from stepscope.run.remote import local_copies

    given = {one: value for one in _RUN_ARGUMENTS if (value := getattr(args, one, None))}
    flat = [word for value in given.values() for word in ([value] if isinstance(value, str) else value)]
    if not any(map(is_address, flat)):
        return command(args)
    if name in _WRITES_INTO_THE_RUN:
        raise UsageError(f"{name} {_WRITES_INTO_THE_RUN[name]}, so it takes no address; copy the run here first")

    def is_small(name: str) -> bool:
        return name == RUN_JSON or name.endswith(".steps.jsonl")

    with (
        work_progress("copying", unit="files") as progress,
        local_copies(flat, wanted=is_small if getattr(args, "no_traces", False) else None, progress=progress) as here,
    ):
        paths = iter(here.paths)
        for one, value in given.items():
            setattr(args, f"named_{one}", value)
            setattr(args, one, next(paths) if isinstance(value, str) else [next(paths) for _ in value])
        args.copies, args.no_cache = here, True
        try:
            return command(args)
        except StepscopeError as error:
            raise type(error)(here.shown(str(error))) from error


def as_given(args: argparse.Namespace, run: "Run") -> "Run":
    """Return a run under the addresses of the command line, if it was read from copies."""
    copies = getattr(args, "copies", None)
    if copies is None:
        return run
    from stepscope.run.remote import named_as_given

    return named_as_given(run, copies)


# Runs read by a cluster: --engine dask://HOST:PORT


def _read_on_cluster(args: argparse.Namespace, paths: list[Path]) -> None:
    from stepscope.run.dask import read_on_cluster

    _check_engine(args)
    if args.no_cache:
        raise UsageError("--engine keeps what was read in the cache; leave --no-cache out, or give --cache-folder")
    with work_progress("reading on the cluster", unit="ranks") as progress:
        outcomes = read_on_cluster(args.engine, paths, cache_folder=args.cache_folder, progress=progress)
    _warn_read_here([(one.path, one.problem) for one in outcomes if one.problem], len(outcomes))


def _outlines_from(args: argparse.Namespace) -> "OutlineFiles":
    from stepscope.analyze.sampled import outline_file
    from stepscope.run.dask import FailedTask, run_on_cluster

    _check_engine(args)

    def absolute(path: str | None) -> str | None:
        return None if path is None else str(Path(path).absolute())

    def outlined(each: "Sequence[Arguments]") -> "list[OutlinedRank | None]":
        given = [(absolute(path), absolute(root), *how) for path, root, *how in each]
        with work_progress("reading on the cluster", unit="ranks") as progress:
            found = run_on_cluster(args.engine, outline_file, given, progress=progress)
        lost = [(path, r.why) for (path, *_), r in zip(each, found, strict=True) if isinstance(r, FailedTask)]
        _warn_read_here(lost, len(each))
        here = [outline_file(*one) if isinstance(r, FailedTask) else r for one, r in zip(each, found, strict=True)]
        return [
            None if rank is None else replace(rank, trace=replace(rank.trace, path=path))
            for rank, (path, *_) in zip(here, each, strict=True)
        ]

    return outlined


def _check_engine(args: argparse.Namespace) -> None:
    from stepscope.run.dask import scheduler_address

    scheduler_address(args.engine)
    if getattr(args, "copies", None) is not None:
        raise UsageError("--engine needs files that all its machines see by the same path; an address is copied here")


def _warn_read_here(left: Sequence[tuple[str, str]], of: int) -> None:
    if left:
        named = "; ".join(f"{path}: {why}" for path, why in left[:3])
        warn(f"{len(left)} of {of} files were not read on the cluster but here: {named}")
