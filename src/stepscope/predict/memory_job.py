"""What is known of a job that a change of its memory depends on: copies of the model, layers, batch, times, links."""

import re
from collections.abc import Iterable

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.memory.moments import Moments, rank_moments
from stepscope.analyze.ranks.phase_compute import phase_compute_ns
from stepscope.analyze.step.phases import Phase
from stepscope.dataclass import dataclass
from stepscope.run.rank import Rank
from stepscope.trace.classify import EventKind
from stepscope.units import NS_PER_S

_SHARDS = ("fsdp-zero3", "fsdp-zero2", "zero2", "zero1")
_NUMBERED = re.compile(r"^(?P<list>(?:.{1,300}\.)?)(?P<number>\d{1,5})$")
_MIN_COPY_BYTES = 1_000_000
"""smaller copies take their start more than the link"""
_HOST_LINK = re.compile(r"HtoD|DtoH")


@dataclass(frozen=True)
class MemoryJob:
    """What changes are worked out from; None is unknown. Times are of one step of the rank."""

    replicas: int | None = None
    """ranks with the same weights, among which they could be split"""
    sharded_as: str | None = None
    """the strategy that splits them already"""
    layers: int | None = None
    recomputes: bool = False
    """whether forward is computed again in backward already"""
    samples: float | None = None
    """per rank and step"""
    forward_ns: float | None = None
    backward_ns: float | None = None
    gradient_comm_ns: float | None = None
    """time in collectives of data parallelism"""
    host_link_bytes_per_s: float | None = None
    """between pinned memory of the host and the device, as copies of the run had it"""


def memory_of(account: Account, rank: int | None = None) -> tuple[Rank, Moments | None] | None:
    """Return a rank (the fullest by default) and what it held; None without any memory."""
    fullest = account.memory.fullest_rank if account.memory else None
    wanted = rank if rank is not None else fullest
    for one, found in zip(account.run.ranks, account.strategy.passes, strict=True):
        if one.rank == wanted:
            return one, rank_moments(account.run, one, found)
    return None


def memory_job(account: Account, rank: Rank) -> MemoryJob:
    """Return what the account of a run tells of one of its ranks."""
    index = account.run.ranks.index(rank)
    dimensions = account.strategy.dimensions
    compute = phase_compute_ns(rank, account.strategy.passes[index]) or {}
    samples, world = account.run.description.get("samples_per_step"), account.run.world_size
    known = isinstance(samples, int | float) and samples > 0 and bool(world)
    return MemoryJob(
        replicas=next((d.size for d in dimensions if d.kind == "ddp"), None),
        sharded_as=next((d.kind for d in dimensions if d.kind in _SHARDS), None),
        layers=num_layers(m.path for m in account.code.modules) if account.code else None,
        recomputes=bool(account.efficiency.recomputed_flops_per_step),
        samples=samples / world if known and samples and world else None,
        forward_ns=compute.get(Phase.FORWARD),
        backward_ns=compute.get(Phase.BACKWARD),
        gradient_comm_ns=_gradient_comm_ns(account, rank, index),
        host_link_bytes_per_s=_host_link(rank),
    )


def num_layers(paths: Iterable[str]) -> int | None:
    """Return how many layers a model has by the paths of its modules: the outermost numbered ones.

    >>> num_layers(["blocks.0", "blocks.0.mlp.0", "blocks.0.mlp.1", "blocks.0.mlp.2", "blocks.1", "head"])
    2
    """
    lists: dict[str, set[int]] = {}
    for path in paths:
        if found := _NUMBERED.match(path):
            lists.setdefault(found["list"], set()).add(int(found["number"]))
    several = {name: numbers for name, numbers in lists.items() if len(numbers) > 1}
    if not several:
        return None
    return len(several[min(several, key=lambda name: (name.count("."), -len(several[name])))])


def _gradient_comm_ns(account: Account, rank: Rank, index: int) -> float | None:
    rows = account.strategy.rows_of(index, "ddp")
    if not len(rows) or not len(rank.steps):
        return None
    c = rank.collectives
    return float((c.end_ns[rows] - c.start_ns[rows]).sum()) / len(rank.steps)


def _host_link(rank: Rank) -> float | None:
    """Return the median rate of large copies between pinned memory and the device."""
    work, trace = rank.work, rank.trace
    rows = np.flatnonzero(work.kind == EventKind.COPY)
    size = trace.arg("bytes").at(work.row[rows], missing=-1) if len(rows) else np.empty(0, np.int64)
    names = [trace.strings[i] for i in work.name[rows].tolist()]
    lasting = work.end_ns[rows] - work.start_ns[rows]
    between = np.array([bool(_HOST_LINK.search(name)) and "Pageable" not in name for name in names], bool)
    keep = between & (size >= _MIN_COPY_BYTES) & (lasting > 0)
    return float(np.median(size[keep] / lasting[keep])) * NS_PER_S if keep.any() else None
