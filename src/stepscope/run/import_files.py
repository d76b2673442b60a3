"""Import of files of other tools into a run folder, under the rank they belong to.

    rank in the file  >  rank in its name  >  unknown

`--rank` overrides all of them; every disagreement is reported. All files are checked before the first is placed, so a
damaged one leaves the run folder as it was.
"""

import filecmp
import os
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from stepscope.contract.run_folder import RUN_JSON, atomic_write, json_object_in, rank_file
from stepscope.errors import InputError, StepscopeError, UsageError
from stepscope.records import Row
from stepscope.run.collectives import believable_world
from stepscope.run.formats import FORMATS, MAX_FILE_BYTES, BytesRead, Contents, Format, format_of, no_progress
from stepscope.run.sources import rank_in_name
from stepscope.side_file import open_side_file, why_no_file
from stepscope.units import printable

_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")


def planned_imports(
    files: Sequence[Path],
    folder: Path,
    *,
    rank: int | None = None,
    force: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> list[Row]:
    """Return where to place each file; an `InputError` or `UsageError` where that is impossible.

    `progress` is called with the bytes checked so far, and all of them.
    """
    sizes = [path.stat().st_size if path.is_file() else 0 for path in files]
    before = [sum(sizes[:i]) for i in range(len(files))]

    def told(start: int) -> BytesRead:
        return no_progress if progress is None else lambda read: progress(start + read, sum(sizes))

    plans = [
        _planned(path, folder, rank=rank, force=force, told=told(start))
        for path, start in zip(files, before, strict=True)
    ]
    by_target: dict[Path, Path] = {}
    for plan in plans:
        first = by_target.setdefault(plan.target, plan.source)
        if first is not plan.source and not _same_content(first, plan.source):
            raise UsageError(
                f"{printable(first.name)} and {printable(plan.source.name)} would both be {plan.target.name}; "
                "import them one by one, each with --rank"
            )
    return plans


def place(plan: Row) -> None:
    """Put a file into its run folder atomically."""
    if plan.already_there:
        return
    try:
        plan.target.parent.mkdir(exist_ok=True)
        if plan.format.store is not None:
            plan.format.store(plan.source, plan.target)
            if plan.format.check_stored:
                try:
                    made = format_of(plan.target)
                    if made is None:
                        raise InputError(f"{plan.target}: what was written is of no known format")
                    made.look(plan.target, no_progress)
                except StepscopeError:
                    plan.target.unlink()
                    raise
            return
        with open_side_file(plan.source, max_bytes=MAX_FILE_BYTES) as f, atomic_write(plan.target) as out:
            shutil.copyfileobj(f, out, 1 << 20)
    except OSError as error:
        raise InputError(f"cannot write {plan.target}: {error.strerror or error}") from error


def _planned(path: Path, folder: Path, *, rank: int | None, force: bool, told: BytesRead) -> Row:
    known = format_of(path)
    if known is None:
        titles = ", ".join(dict.fromkeys(one.title for one in FORMATS))
        raise InputError(f"{printable(str(path))}: is of no format that can be imported ({titles})")
    contents = known.look(path, told)
    number, notes = _rank_of(path, contents, given=rank)
    if number is None and (known.needs_rank or contents.needs_rank) and not contents.whole_job:
        raise UsageError(f"{printable(str(path))}: rank unknown; give --rank")
    world = believable_world(json_object_in(folder / RUN_JSON).get("world_size"))
    if number is not None and world is not None and number >= world:
        notes.append(f"rank {number} is none of the {world} ranks of this run")
    target = folder / _target_name(path, known, number)
    is_there = _is_there(path, target, known, force=force)
    return Row(
        source=path,
        format=known,
        contents=contents,
        # None where it is of several ranks, or unknown
        rank=number,
        target=target,
        already_there=is_there,
        notes=notes,
    )


def _rank_of(path: Path, contents: Contents, *, given: int | None) -> tuple[int | None, list[str]]:
    if contents.whole_job:
        ignored = f"{path.name} holds several ranks, so --rank {given} is not used"
        return None, [] if given is None else [ignored]
    inside = contents.ranks[0] if len(contents.ranks) == 1 else None
    said = [("--rank", given), ("the file itself", inside), ("its name", rank_in_name(path.name))]
    known = [(who, rank) for who, rank in said if rank is not None]
    if not known:
        return None, []
    (first, rank), rest = known[0], known[1:]
    return rank, [
        f"{path.name}: rank {rank} by {first}, rank {other} by {who}; {first} is believed"
        for who, other in rest
        if other != rank
    ]


def _target_name(path: Path, known: Format, rank: int | None) -> str:
    if rank is not None:
        return rank_file(rank, known.ending)
    stem = path.name
    for ending in (*known.endings, ".sqlite", ".csv", ".nsys-rep", ".ncu-rep", ".log", ".json.gz", ".json", ".gz"):
        stem = stem.removesuffix(f".{ending.removeprefix('.')}")
    return f"{_UNSAFE.sub('_', stem).strip('._')[:80] or 'job'}.{known.ending}"


def _is_there(source: Path, target: Path, known: Format, *, force: bool) -> bool:
    why_not = why_no_file(target)
    if why_not is not None:
        raise UsageError(f"cannot write {target}: {why_not}; remove it or give another run")
    if not os.path.lexists(target):
        return False
    if known.store is None and _same_content(source, target):
        return True
    if not force:
        raise UsageError(f"{target} already exists; use --force")
    return False


def _same_content(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve() or filecmp.cmp(one, other, shallow=False)
