"""Kernels measured by Nsight Compute: which launch stands for which kernel of a trace, and what was measured.

Equal functions are candidates:

    trace   void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, ...>(int, ...)
    ncu     void at::vectorized_elementwise_kernel<(int)4, at::CUDAFunctor_add<float>, ...>(int, T2, T3)

Where several differ only in what is in their brackets, the one with the most words in common is meant; where two have
as many, none is.
"""

import re
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np

from stepscope.analyze.host_time import Floats
from stepscope.cost.operators import NO_NAME, function_of
from stepscope.records import ArrayRecord, Row, dataclass
from stepscope.run.load import Run
from stepscope.run.rank import Rank
from stepscope.trace.table import NO_STRING, EventKind, Int64s

_CAST = re.compile(r"\((?:unsigned |signed )?(?:int|long|short|char|bool|long long)\)(?=[-\w])")
_WORD = re.compile(r"[A-Za-z_]\w+|\d+")
# words that one spelling has and another leaves out
_FILLERS = frozenset(
    {
        *("void", "int", "char", "unsigned", "long", "const", "operator", "lambda", "instance"),
        *("at", "native", "std", "array"),
    }
)
_TYPE_NUMBER = re.compile(r"^T\d+$|^\d+ul$|^ul$")


def kernels_named(names: Iterable[str], kernels: Iterable[str]) -> dict[str, str]:
    """Return the kernel of a trace for each name; ambiguous names are left out."""
    by_function: dict[str, list[str]] = {}
    for kernel in sorted(set(kernels)):
        by_function.setdefault(function_of(kernel), []).append(kernel)
    words = {kernel: _words(kernel) for kernels in by_function.values() for kernel in kernels}
    out = {}
    for name in set(names):
        found = _meant(name, by_function.get(function_of(name), []), words)
        if found is not None:
            out[name] = found
    return out


def _meant(name: str, candidates: list[str], words: dict[str, frozenset[str]]) -> str | None:
    if name in candidates:
        return name
    if "<" not in name:  # the function alone was written, or it has no arguments
        return candidates[0] if len(candidates) == 1 else None
    mine = _words(name)
    shares = ((len(mine & words[kernel]) / max(len(mine | words[kernel]), 1), kernel) for kernel in candidates)
    alike = sorted(shares, reverse=True)
    best, kernel = alike[0] if alike else (0.0, "")
    is_clear = len(alike) < 2 or best > alike[1][0]
    return kernel if is_clear and best >= 0.3 else None


def _words(name: str) -> frozenset[str]:
    plain = _CAST.sub("", NO_NAME.sub("", name))
    return frozenset(w for w in _WORD.findall(plain) if w not in _FILLERS and not _TYPE_NUMBER.match(w))


# name, grid and block
_Class = tuple[str, str | None, str | None]


@dataclass(frozen=True, eq=False, repr=False)
class MeasuredRows(ArrayRecord):
    """The Nsight Compute launch that represents each row of a rank's work."""

    #: index into `launches`, -1 where none was measured
    launch: Int64s
    launches: tuple[Row, ...]
    #: measured launches that no kernel of the rank is
    unjoined: int

    def values(self, metric: str) -> Floats:
        by_launch = [getattr(launch, metric) for launch in self.launches]
        known = np.array([np.nan if value is None else value for value in by_launch] + [np.nan], np.float64)
        return known[self.launch]

    @cached_property
    def dram_gb_per_s(self) -> Floats:
        return self.values("dram_bytes") / self.values("duration_ns")


def measured_rows(rank: Rank, measured: Sequence[Row]) -> MeasuredRows | None:
    """Return what was measured of a rank's kernels, None where nothing was."""
    launches = [launch for one in measured if one.rank in (None, rank.rank) for launch in one.launches]
    if not launches:
        return None
    work = rank.work
    classes = _kernels_classes(rank, np.flatnonzero(np.isin(work.kind, (EventKind.KERNEL, EventKind.COMM_KERNEL))))
    meant = kernels_named((launch.name for launch in launches), (name for name, _, _ in classes))
    of_class: dict[_Class, list[int]] = {}
    for i, launch in enumerate(launches):
        if launch.name in meant:
            found = _class_of(meant[launch.name], launch, classes)
            if found is not None:
                of_class.setdefault(found, []).append(i)
    out = np.full(len(work), -1, np.int64)
    for kind, mine in of_class.items():
        at = classes[kind]
        out[at] = np.array(mine, np.int64)[np.arange(len(at)) % len(mine)]
    return MeasuredRows(out, tuple(launches), len(launches) - sum(map(len, of_class.values())))


def measured_warnings(run: Run) -> list[str]:
    """Return a line where Nsight Compute measured launches that are no kernels of the run."""
    found = [rows for rank in run.ranks if (rows := measured_rows(rank, run.measured)) is not None]
    total = sum(len(one.launches) for one in run.measured)
    lost = min((rows.unjoined for rows in found), default=total)
    if not lost:
        return []
    return [
        f"{lost:,} of {total:,} launches that Nsight Compute measured are no kernels of this run (name, grid, block): "
        "they were of another job, other sizes or steps that are not in the traces"
    ]


def _kernels_classes(rank: Rank, rows: Int64s) -> dict[_Class, Int64s]:
    trace, work = rank.trace, rank.work
    grid, block = (trace.arg(name).at(work.row[rows], missing=NO_STRING) for name in ("grid", "block"))
    keys = np.stack((work.name[rows].astype(np.int64), grid, block), axis=1)
    unique, back = np.unique(keys, axis=0, return_inverse=True)
    back = back.reshape(-1)
    order = np.argsort(back, kind="stable")
    cuts = np.searchsorted(back[order], np.arange(len(unique) + 1))
    return {
        (trace.text(name) or "", trace.text(g), trace.text(b)): rows[order[cuts[i] : cuts[i + 1]]]
        for i, (name, g, b) in enumerate(unique.tolist())
    }


def _class_of(name: str, launch: Row, classes: dict[_Class, Int64s]) -> _Class | None:
    exact = name, _text(launch.grid), _text(launch.block)
    if exact in classes:
        return exact
    unknown = name, None, None
    if unknown in classes:
        return unknown
    named = [kind for kind in classes if kind[0] == name] if launch.grid is None else []
    return named[0] if len(named) == 1 else None


def _text(sizes: tuple[int, ...] | None) -> str | None:
    return None if sizes is None else str(list(sizes))
