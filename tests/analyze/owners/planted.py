"""Traces whose every operator has a known line, and the file of owners that a step with frames would have left.

r = PlantedRank(0)
with r.line("train.py:10", "model.py:5", module="blocks.0"):
    with r.op("aten::mm", 10, 40):
        r.kernel("gemm", at=20, start=50, end=150)
r.write_owners(folder, step=(0, 1000))       # operators that began in that time, as if they had frames
"""

import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.analyze.build import AUTOGRAD, MAIN, RankTrace

from stepscope.contract.run_folder import owners_file

Python = tuple[float, float, tuple[str, ...], int]


class PlantedRank(RankTrace):
    """A rank whose operators remember where in the user's code they were called."""

    def __init__(self, rank: int = 0, **given: Any) -> None:
        super().__init__(rank, **given)
        self._where: list[tuple[tuple[str, ...], str | None]] = [((), "")]
        self._python: list[Python] = []

    @contextmanager
    def line(self, *stack: str, module: str | None = "") -> Iterator[None]:
        """Let everything inside be called from this stack, outermost first; `lib:` marks frames of libraries, a third
        part is the function's name. Without a name the module is the outermost one, with None there is none.
        """
        self._where.append((stack, module))
        yield
        self._where.pop()

    def python_time(self, start: float, end: float, *stack: str, calls: int = 0) -> None:
        """Say that Python of this stack ran then, in no operator, and made so many calls."""
        self._python.append((start, end, stack, calls))

    def _host(self, category: str, name: str, start: float, end: float, thread: int, args: dict[str, Any]) -> None:
        super()._host(category, name, start, end, thread, args)
        self.events[-1]["planted"] = self._where[-1]

    def owners_document(self, step: tuple[float, float]) -> dict[str, Any]:
        """Return the file of owners of the step between two moments."""
        table = _Table()
        begin, end = (self._local_ns(t) / 1000 for t in step)
        own = [e for e in self.events if e["cat"] in ("cpu_op", "user_annotation") and begin <= e["ts"] < end]
        own = [e for e in own if not e["name"].startswith("ProfilerStep")]
        threads = []
        for tid in sorted({e["tid"] for e in own}):
            entries = sorted((e for e in own if e["tid"] == tid), key=lambda e: (e["ts"], -e["dur"]))
            threads.append(self._thread(tid, entries, table, step))
        return {"schema": 1, "rank": self.rank, "torch": "2.13.0", "steps": [1], "lines": "executing", "root": "/p",
                **table.document(), "threads": threads, "source_files": [], "buckets": None, "loader": None,
                "reasons": {}}  # fmt: skip

    def _thread(
        self, tid: int, entries: list[dict[str, Any]], table: "_Table", step: tuple[float, float]
    ) -> dict[str, Any]:
        ends: list[float] = []
        depth = []
        for e in entries:
            while ends and ends[-1] <= e["ts"]:
                ends.pop()
            depth.append(len(ends))
            ends.append(e["ts"] + e["dur"])
        starts = [e["ts"] for e in entries]
        gaps = []
        for start, end, stack, calls in self._python if tid == MAIN else []:
            if step[0] <= start < step[1]:
                at = self._local_ns(start) / 1000
                before = next((i for i, ts in enumerate(starts) if ts >= at), len(starts))
                gaps.append([before, table.stack(stack), round((end - start) * 1000), calls])
        return {
            "role": "training" if tid == MAIN else "autograd" if tid == AUTOGRAD else "other",
            "name": [table.index("names", e["name"]) for e in entries],
            "depth": depth,
            "stack": [table.stack(e["planted"][0]) for e in entries],
            "module": [-1 if (m := e["planted"][1]) is None else table.index("modules", m) for e in entries],
            "sequence": [e["args"].get("Sequence number", -1) for e in entries],
            "step": [1] * len(entries),
            "python": gaps,
        }

    def write_owners(self, folder: Path, step: tuple[float, float], **changed: Any) -> Path:
        """Write the file of owners, with some fields changed."""
        return write_owners(folder, self.rank, {**self.owners_document(step), **changed})


def write_owners(folder: Path, rank: int, document: dict[str, Any]) -> Path:
    """Write a file of owners."""
    path = folder / owners_file(rank)
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    return path


class _Table:
    """Names by number."""

    def __init__(self) -> None:
        self._known: dict[str, dict[Any, int]] = {k: {} for k in ("files", "frames", "stacks", "modules", "names")}

    def index(self, table: str, value: Any) -> int:
        known = self._known[table]
        return known.setdefault(value, len(known))

    def stack(self, places: tuple[str, ...]) -> int:
        if not places:
            return -1
        return self.index("stacks", tuple(self._frame(place) for place in places))

    def _frame(self, place: str) -> int:
        file, line, *function = place.removeprefix("lib:").split(":")
        name = function[0] if function else "f"
        return self.index("frames", (self.index("files", file), int(line), name, int(not place.startswith("lib:"))))

    def document(self) -> dict[str, Any]:
        return {k: [list(v) if isinstance(v, tuple) else v for v in known] for k, known in self._known.items()}
