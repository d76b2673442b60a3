"""What else a trace says about how the job is parallel: wrappers, kernels of experts, uneven messages."""

import re

from stepscope.analyze.parallel.pipeline.actions import MARKED_ACTION
from stepscope.contract.collectives import EXPERT_KERNEL, OP_CODE
from stepscope.dataclass import dataclass
from stepscope.run.rank import Rank
from stepscope.stats.distinct import distinct
from stepscope.trace.classify import EventKind

_DDP = re.compile(r"^DistributedDataParallel\.")
_FSDP = ((2, re.compile(r"^FSDP::")), (1, re.compile(r"FullyShardedDataParallel")))
_EMBEDDINGS = re.compile(r"KJT|all2all_data|PooledEmbedding|alltoall_(fwd|bwd)_single|EmbeddingBagCollection")


@dataclass(frozen=True)
class Hints:
    """What ranges in the trace say about the job."""

    ddp: bool = False
    fsdp: int = 0
    """version of FSDP, 0 without"""
    pipeline: bool = False
    embeddings: bool = False
    routed: bool = False
    """all-to-alls with an amount per peer, as only routed tokens need it"""
    trains: bool = False
    """backward passes were recorded"""
    experts: bool = False
    """kernels of an expert-parallel library"""


def hints_of_rank(rank: Rank, *, trains: bool) -> Hints:
    """Return what the names of ranges and kernels of a rank say."""
    names = rank.names(EventKind.ANNOTATION)
    return Hints(
        ddp=any(_DDP.search(n) for n in names),
        fsdp=next((version for version, p in _FSDP if any(p.search(n) for n in names)), 0),
        pipeline=any(MARKED_ACTION.match(n) for n in names),
        embeddings=any(_EMBEDDINGS.search(n) for n in names),
        routed=_amounts_per_peer(rank),
        trains=trains,
        experts=_expert_kernels(rank),
    )


def _expert_kernels(rank: Rank) -> bool:
    """Return whether kernels of an expert-parallel library ran."""
    ids = distinct(rank.work.name[rank.work.kind == EventKind.COMM_KERNEL])
    return any(EXPERT_KERNEL.search(rank.trace.strings[i]) for i in ids if i >= 0)


def _amounts_per_peer(rank: Rank) -> bool:
    """Return whether any all-to-all was recorded with a list of amounts."""
    c = rank.collectives
    records = c.record_row[(c.op == OP_CODE["all_to_all"]) & (c.record_row >= 0)]
    lists = distinct(rank.trace.arg("in_split").at(records, missing=-1))
    return any((rank.trace.text(int(i)) or "[]").strip() != "[]" for i in lists)
