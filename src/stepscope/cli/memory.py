"""`stepscope memory`: memory through the step, from a run folder, its snapshots, or a snapshot alone."""

import argparse
import sys
from pathlib import Path

from stepscope.analyze.account import Account
from stepscope.analyze.memory_events import Moments, snapshot_moments
from stepscope.analyze.memory_snapshot import SnapshotView, snapshot_view
from stepscope.cli.given.run_arguments import account_from, warn_incomplete
from stepscope.cli.messages import warn
from stepscope.cli.output import check_outputs, write_json
from stepscope.document.live import memory_document
from stepscope.errors import InputError
from stepscope.predict.memory import MemoryJob, MemoryWhatIf, memory_job, memory_of, memory_what_if, predicted_states
from stepscope.report.terminal import console
from stepscope.report.text.memory import print_memory_what_ifs, print_predicted, print_rank_memory, print_snapshot
from stepscope.run.dumps import SaidStorages, is_snapshot, memory_snapshots, storages_beside
from stepscope.run.sources import find_sources, rank_in_name
from stepscope.trace.memory_snapshot import read_memory_snapshot


def run(args: argparse.Namespace) -> int:
    """Return 0, or 3 where a rank or a snapshot could not be read."""
    check_outputs(args.json, force=args.force)
    snapshots, unreadable = _snapshots(args.run)
    account = _account(args, bool(snapshots))
    rank, moments = _held(account, snapshots, args.rank)
    predicted = predicted_states(account.run.description, moments) if account is not None else ()
    what_ifs = _what_ifs(args.what_if, account, moments, rank)
    if args.json:
        document = memory_document(
            account, snapshots, predicted=predicted, what_ifs=what_ifs, warnings=unreadable, of_rank=rank
        )
        write_json(args.json, document, force=args.force)
    if args.json != "-":
        _print(account, snapshots, args.rank)
        print_predicted(predicted, console(sys.stdout))
        print_memory_what_ifs(what_ifs, console(sys.stdout), rank=rank)
    if account is not None:
        warn_incomplete(account)
    for line in unreadable:
        warn(line)
    return 3 if unreadable or (account is not None and account.run.unreadable) else 0


def _snapshots(given: list[str]) -> tuple[dict[int | None, SnapshotView], list[str]]:
    found: dict[int | None, SnapshotView] = {}
    unreadable: list[str] = []
    for one in map(Path, given):
        if one.is_dir():
            inside, lost = memory_snapshots(one)
            unreadable += lost
            for rank, snapshot in inside:
                path, device = Path(snapshot.path), snapshot.device
                said = storages_beside(path, rank=rank, device=device) if rank is not None else SaidStorages()
                view = snapshot_view(snapshot, storages=said.category, bucket_bytes=said.bucket_bytes)
                found[_free(rank, found)] = view
        elif one.is_file() and is_snapshot(one):
            found[_free(rank_in_name(one.name), found)] = snapshot_view(read_memory_snapshot(one))
    return found, unreadable


def _held(
    account: Account | None, snapshots: dict[int | None, SnapshotView], rank: int | None
) -> tuple[int | None, Moments | None]:
    found = memory_of(account, rank) if account is not None else None
    if found is not None and found[1] is not None:
        return found[0].rank, found[1]
    shown = {r: view for r, view in snapshots.items() if rank is None or r in (rank, None)}
    if not shown:
        return rank if found is None else found[0].rank, None
    fullest = max(shown, key=lambda r: shown[r].peak.allocated_bytes)
    return fullest, snapshot_moments(shown[fullest].by_purpose, shown[fullest].phases)


def _what_ifs(
    changes: list[str], account: Account | None, moments: Moments | None, rank: int | None
) -> list[MemoryWhatIf]:
    of = [one for one in account.run.ranks if one.rank == rank] if account is not None and changes else []
    job = memory_job(account, of[0]) if account is not None and of else MemoryJob()
    return [memory_what_if(change, moments, job) for change in changes]


def _free(rank: int | None, taken: dict[int | None, SnapshotView]) -> int | None:
    return rank if rank not in taken else next(n for n in range(len(taken) + 1) if n not in taken)


def _account(args: argparse.Namespace, has_snapshots: bool) -> Account | None:
    others = [one for one in args.run if Path(one).is_dir() or not (Path(one).is_file() and is_snapshot(Path(one)))]
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


def _print(account: Account | None, snapshots: dict[int | None, SnapshotView], rank: int | None) -> None:
    out = console(sys.stdout)
    ranks = list(account.memory.ranks) if account is not None and account.memory is not None else []
    known = [r.rank for r in ranks] + [r for r in snapshots if r is not None]
    if rank is not None and known and rank not in known:
        raise InputError(f"no memory of rank {rank} was recorded; there is {', '.join(map(str, sorted(set(known))))}")
    if ranks and account is not None and account.memory is not None:
        fullest = rank if rank is not None else account.memory.fullest_rank
        for one in ranks:
            if one.rank == fullest:
                others = next((d.others_bytes for d in account.devices if d.rank == one.rank), None)
                print_rank_memory(one, out, ranks=len(ranks), others_bytes=others)
    shown = list(snapshots.items()) if rank is None else [(r, v) for r, v in snapshots.items() if r in (rank, None)]
    fullest_first = sorted(shown, key=lambda item: -item[1].peak.allocated_bytes)
    for of_rank, view in fullest_first[:1]:
        print_snapshot(of_rank, view, out, others=len(shown) - 1)
