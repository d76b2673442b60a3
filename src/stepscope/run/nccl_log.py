"""What does NCCL's own log say: version, channels, how ranks are connected, warnings?"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

_MAX_WARNINGS = 20
_MAX_TRANSPORTS = 64
# Each piece has a longest length: a line may hold a million digits.
_VERSION = re.compile(r"NCCL version (\S{1,64})")
_CHANNELS = re.compile(r"(\d{1,9}) coll channels")
_VIA = re.compile(r"\bvia ([A-Za-z0-9]{1,32}(?:/[A-Za-z0-9]{1,32})?)")
_NETWORK = re.compile(r"Using network (\S{1,64})")
_WARNING = re.compile(r"NCCL WARN (.{0,400})")


@dataclass(frozen=True)
class NcclLog:
    """What NCCL's own log says on one rank."""

    rank: int
    version: str | None
    channels: int | None
    transports: dict[str, int]
    """connections by how they are made: P2P/CUMEM, SHM/direct, NET/Socket, ..."""
    network: str | None
    warnings: tuple[str, ...]


def nccl_log(lines: Iterable[bytes], *, rank: int) -> NcclLog:
    """Return what the lines of one rank's log say; the first that says a thing counts."""
    said: dict[re.Pattern[str], str] = {}
    transports: Counter[str] = Counter()
    warnings: dict[str, None] = {}
    for raw in lines:
        line = raw.decode(errors="replace")
        for pattern in (_VERSION, _CHANNELS, _NETWORK):
            if pattern not in said and (found := pattern.search(line)):
                said[pattern] = found.group(1)
        for via in _VIA.findall(line):
            if via in transports or len(transports) < _MAX_TRANSPORTS:
                transports[via] += 1
        for warning in _WARNING.findall(line):
            if len(warnings) < _MAX_WARNINGS:
                warnings[warning.strip()] = None
    return NcclLog(
        rank=rank,
        version=said.get(_VERSION),
        channels=int(said[_CHANNELS]) if _CHANNELS in said else None,
        transports=dict(transports.most_common()),
        network=said.get(_NETWORK),
        warnings=tuple(warnings),
    )
