"""What NCCL's debug log says of a rank, as records. How it is read is in `log`: where there is none, nothing of that is
imported.
"""

from dataclasses import field

from stepscope.dataclass import dataclass


@dataclass(frozen=True)
class Communicator:
    """One communicator that a rank made."""

    id: str | None
    """the same on all ranks; None before 2.19"""
    rank: int
    num_ranks: int
    device: int
    bus_id: str
    init_s: float | None
    """how long its making took, None where that is not logged (before 2.19)"""
    init_parts_s: dict[str, float]


@dataclass(frozen=True)
class Choice:
    """What NCCL chose for an operation of a size."""

    op: str | None
    """None where the log does not say (2.20 to 2.22) and no single operation has that size"""
    size_bytes: int
    algorithm: str
    protocol: str
    channels: int | None
    """None before 2.24"""
    count: int


@dataclass(frozen=True)
class LoggedCollective:
    """Calls of one operation and size."""

    op: str
    size_bytes: int | None
    """full buffer; None for a type that is not known"""
    num_ranks: int | None
    count: int


@dataclass(frozen=True)
class NcclLog:
    """What NCCL's own log says on one rank."""

    rank: int
    version: str | None
    channels: int | None
    transports: dict[str, int]
    """connections by how they are made: P2P/CUMEM, SHM/direct, NET/Socket, NET/IB/GDRDMA, ..."""
    network: str | None
    warnings: tuple[str, ...]
    host: str | None = None
    num_ranks: int | None = None
    num_nodes: int | None = None
    local_ranks: int | None = None
    max_bw_gb_per_s: float | None = None
    """by NCCL's own model of the topology"""
    total_bw_gb_per_s: float | None = None
    links: dict[str, float] = field(default_factory=dict)
    """the widest link of each kind in the topology: NVL, PCI, NET, ..., in GB/s"""
    interfaces: tuple[str, ...] = ()
    infiniband_missing: bool = False
    """NCCL looked for InfiniBand and found none that it could use"""
    settings: dict[str, str] = field(default_factory=dict)
    """variables of the environment that NCCL took"""
    communicators: tuple[Communicator, ...] = ()
    num_rings: int | None = None
    choices: tuple[Choice, ...] = ()
    collectives: tuple[LoggedCollective, ...] = ()
    num_lines: int = 0
