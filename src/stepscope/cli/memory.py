"""Device memory over the step: categories, the peak and what is alive at it, gaps, growth.

examples:
  stepscope memory run-folder/
  stepscope memory snapshot.pickle --html memory.html
  stepscope memory run-folder/ --rank 1 --json -
  stepscope memory run-folder/ --what-if checkpointing --what-if zero=2 --what-if batch=2x

Changes: checkpointing[=LAYERS], zero=1|2|3, offload=optimizer, batch=N|2x; estimated from measured sizes.
A snapshot is what torch.cuda.memory._dump_snapshot wrote, or `stepscope record --memory` next to the traces, also at
an out-of-memory error: then the failed request and what would have let it fit are shown first.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.cli.arguments import add_html, add_json, add_run_options, at_least_zero
from stepscope.cli.outputs import show, warn
from stepscope.cli.run import account_from, warn_incomplete
from stepscope.errors import InputError

if TYPE_CHECKING:
    from stepscope.analyze.account import Account
    from stepscope.analyze.memory import Moments
    from stepscope.records import Row


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("run", metavar="RUN|SNAPSHOT", nargs="+", help="run folder, traces, or memory snapshots")
    parser.add_argument("--rank", type=at_least_zero, metavar="R", help="one rank (default: highest peak)")
    parser.add_argument(
        "--what-if", metavar="CHANGE", action="append", default=[], help="the peak with one thing changed; repeatable"
    )
    add_json(parser, "all ranks as JSON")
    add_html(parser)
    add_run_options(parser)


def run(args: argparse.Namespace) -> int:
    """Return 0, or 3 if a rank or a snapshot could not be read."""
    from stepscope.analyze.memory import predicted_states
    from stepscope.document.live import memory_document
    from stepscope.report.pages.memory import memory_sheet
    from stepscope.whatif.memory import MemoryJob, memory_job, memory_what_if, would_have_fitted

    snapshots, unreadable = _snapshots(args.run)
    account = _account(args, bool(snapshots))
    rank, moments = _held(account, snapshots, args.rank)
    predicted = predicted_states(account.run.description, moments) if account else ()
    needs_job = args.what_if or any(view.out_of_memory for view in snapshots.values())
    of = [one for one in account.run.ranks if one.rank == rank] if account and needs_job else []
    job = memory_job(account, of[0]) if account and of else MemoryJob()
    what_ifs = [memory_what_if(change, moments, job) for change in args.what_if]
    for failed in (view for view in snapshots.values() if view.out_of_memory):
        failed.out_of_memory["fits"] = would_have_fitted(failed, job)
    document = memory_document(
        account, snapshots, predicted=predicted, what_ifs=what_ifs, warnings=unreadable, of_rank=rank
    )
    _check_rank(document, args.rank)
    show(args, document, lambda: memory_sheet(document, rank=args.rank))
    code = warn_incomplete(account) if account else 0
    warn(*unreadable)
    return 3 if unreadable else code


def _snapshots(given: list[str]) -> "tuple[dict[int | None, Row], list[str]]":
    from stepscope.analyze.memory_snapshot import snapshot_view
    from stepscope.run.dumps import SaidStorages, is_snapshot, memory_snapshots, storages_beside
    from stepscope.run.sources import rank_in_name
    from stepscope.trace.memory_snapshot import read_memory_snapshot

    found: dict[int | None, Row] = {}
    unreadable: list[str] = []

    def add(rank: int | None, view: "Row") -> None:
        found[rank if rank not in found else next(n for n in range(len(found) + 1) if n not in found)] = view

    for one in map(Path, given):
        if one.is_dir():
            inside, lost = memory_snapshots(one)
            unreadable += lost
            for rank, snapshot in inside:
                path, device = Path(snapshot.path), snapshot.device
                said = storages_beside(path, rank=rank, device=device) if rank is not None else SaidStorages()
                add(rank, snapshot_view(snapshot, storages=said.category, bucket_bytes=said.bucket_bytes))
        elif one.is_file() and is_snapshot(one):
            add(rank_in_name(one.name), snapshot_view(read_memory_snapshot(one)))
    return found, unreadable


def _account(args: argparse.Namespace, has_snapshots: bool) -> "Account | None":
    from stepscope.run.dumps import is_snapshot
    from stepscope.run.sources import find_sources

    others = [one for one in args.run if not (Path(one).is_file() and is_snapshot(Path(one)))]
    if not others:
        return None
    if has_snapshots:
        try:
            find_sources(others)
        except InputError:
            return None
    account = account_from(args, others)
    if account.memory is None and not has_snapshots:
        missing = "no memory was recorded; record with `stepscope record --memory`, or give a memory snapshot"
        raise InputError(f"{account.run.name}: {'; '.join(account.failures) or missing}")
    return account


def _held(
    account: "Account | None", snapshots: "dict[int | None, Row]", rank: int | None
) -> "tuple[int | None, Moments | None]":
    from stepscope.analyze.memory import snapshot_moments
    from stepscope.whatif.memory import memory_of

    found = memory_of(account, rank) if account else None
    if found is not None and found[1] is not None:
        return found[0].rank, found[1]
    if shown := _fullest_first(snapshots, rank):
        fullest, view = shown[0]
        return fullest, snapshot_moments(view.by_purpose, view.phases)
    return rank if found is None else found[0].rank, None


def _fullest_first(snapshots: "dict[int | None, Row]", rank: int | None) -> "list[tuple[int | None, Row]]":
    shown = [(r, view) for r, view in snapshots.items() if rank is None or r in (rank, None)]
    return sorted(shown, key=lambda item: -item[1].peak.allocated_bytes)


def _check_rank(document: dict[str, Any], rank: int | None) -> None:
    ranks = (document["memory"] or {"ranks": ()})["ranks"]
    known = {one["rank"] for one in (*ranks, *document["snapshots"])} - {None}
    if rank is not None and known and rank not in known:
        raise InputError(f"no memory of rank {rank} was recorded; there is {', '.join(map(str, sorted(known)))}")
