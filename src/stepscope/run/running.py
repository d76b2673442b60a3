"""State of a running job's folder: the newest steps of each rank, and hung ranks.

Step logs are read incrementally, so a refresh costs what was written since the last one; the first begins near their
end. The newest steps of each rank are retained, and the first ones of one rank as a reference for later ones. An
unreadable line is skipped: it may be incomplete.
"""

import contextlib
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepscope.contract.live import RankStatus, read_status
from stepscope.contract.run_folder import RUN_JSON, facts_file, json_object, json_object_in, rank_of
from stepscope.records import dataclass
from stepscope.run.side_files import is_count, number
from stepscope.side_file import appended

KEPT_STEPS = 200
_FIRST_STEPS = 120
_FIRST_READ_BYTES = 256 << 10
_MAX_READ_BYTES = 4 << 20

Line = dict[str, Any]


@dataclass(frozen=True)
class RunningRank:
    """One rank as its files show it."""

    rank: int
    #: of its newest steps
    lines: tuple[Line, ...]
    #: `closed` or `killed` once its helper has seen the training process end
    ended: str | None
    status: RankStatus | None
    #: of the model on this rank in one step, where they were counted
    flops: float | None = None


@dataclass(frozen=True)
class Running:
    """A running job at one moment."""

    folder: Path
    ranks: tuple[RunningRank, ...]
    #: the first steps of the lowest rank
    first: tuple[Line, ...]
    #: run.json, if written yet: after a window, and at the end
    description: Mapping[str, Any]
    #: of the lowest rank, where there are some
    facts: Mapping[str, Any]

    @property
    def is_over(self) -> bool:
        return bool(self.ranks) and all(rank.ended is not None for rank in self.ranks)


class RunningJob:
    """Incremental reader of one run folder; each `look` continues where the last one ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._tails: dict[int, _Tail] = {}
        self._first: tuple[Line, ...] = ()

    def look(self) -> Running:
        found = {rank_of(path.name): path for path in self.folder.glob("rank*.steps.jsonl")}
        paths = {rank: path for rank, path in sorted(found.items(), key=lambda p: p[0] or 0) if rank is not None}
        kept = KEPT_STEPS if len(paths) <= 64 else 64
        for rank, path in paths.items():
            self._tails.setdefault(rank, _Tail(path, kept)).read()
        if paths and len(self._first) < _FIRST_STEPS:
            with contextlib.suppress(OSError):
                data, _ = appended(paths[min(paths)], 0, max_bytes=_FIRST_READ_BYTES)
                self._first = tuple(_steps(data.split(b"\n")[:-1])[:_FIRST_STEPS])
        ranks = tuple(self._rank(rank) for rank in self._tails)
        facts = json_object_in(self.folder / facts_file(min(paths))) if paths else {}
        return Running(self.folder, ranks, self._first, json_object_in(self.folder / RUN_JSON), facts)

    def _rank(self, rank: int) -> RunningRank:
        facts = json_object_in(self.folder / facts_file(rank))
        ended = facts.get("ended")
        return RunningRank(
            rank=rank,
            lines=tuple(self._tails[rank].lines),
            ended=ended if ended in ("closed", "killed") else None,
            status=read_status(self.folder, rank),
            flops=_flops(facts.get("flops")),
        )


class _Tail:
    def __init__(self, path: Path, kept: int) -> None:
        self.lines: deque[Line] = deque(maxlen=kept)
        self._path = path
        self._offset: int | None = None
        self._rest = b""

    def read(self) -> None:
        limit = _FIRST_READ_BYTES if self._offset is None else _MAX_READ_BYTES
        with contextlib.suppress(OSError):
            data, self._offset = appended(self._path, self._offset, max_bytes=limit)
            *lines, self._rest = (self._rest + data).split(b"\n")
            self.lines.extend(_steps(lines))
            self._rest = self._rest[:_MAX_READ_BYTES]


def _flops(counted: object) -> float | None:
    if not isinstance(counted, dict):
        return None
    total, forward = number(counted.get("total")), number(counted.get("forward"))
    return min(total, 3.0 * forward) if total is not None and forward else total


def _steps(lines: list[bytes]) -> list[Line]:
    found = (json_object(line) for line in lines if line)
    return [
        line
        for line in found
        if line is not None and all(is_count(line.get(name)) for name in ("step", "start_ns", "end_ns", "dur_ns"))
    ]
