"""What does one line of NCCL's debug log say? The forms of 2.14 to 2.30, one pattern per fact.

    [0] [2026-01-02 10:11:12] host:441:477 [3] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0
    `-launcher, from 2.26-'    host:pid:thread [device]   level   text

Every piece has a longest length: a line may hold a million digits.
"""

import re
from functools import lru_cache
from typing import NamedTuple

LINE = re.compile(r"[\w.-]{1,128}:\d{1,12}:\d{1,12} \[\d{1,4}\] (?:[\w./+-]{1,128}:\d{1,6} )?NCCL (?:INFO|WARN|TRACE) ")
_WHO = re.compile(r"([\w.-]{1,128}):(\d{1,12}):\d{1,12} \[\d{1,4}\](?: ([\w./+-]{1,128}:\d{1,6}))?$")
_LEVELS = (b"INFO", b"WARN", b"TRACE", b"ABORT", b"ERROR")
_MAX_PREFIX = 400
_MAX_TEXT = 2000
VERSION = re.compile(r"NCCL version (\S{1,64})")
CHANNELS = re.compile(r"(\d{1,9}) coll channels")
VIA = re.compile(r"\bvia ([A-Za-z0-9]{1,32}(?:/[A-Za-z0-9]{1,32}){0,4})")
NETWORK = re.compile(r"Using network (\S{1,64})")
SETTING = re.compile(r"\b(NCCL_[A-Z0-9_]{1,60}) set by environment to (\S{1,100}?)\.?$")
TOPOLOGY = re.compile(r"=== System : maxBw (\d{1,9}(?:\.\d{1,9})?) totalBw (\d{1,9}(?:\.\d{1,9})?) ===")
NODES = re.compile(r"\brank (\d{1,9}) nRanks (\d{1,9}) nNodes (\d{1,9}) localRanks (\d{1,9})")
INIT = re.compile(
    r"comm (0x[0-9a-f]{1,16}) rank (\d{1,9}) n[rR]anks (\d{1,9}) cudaDev (\d{1,4})(?: nvmlDev \d{1,4})? "
    r"busId ([0-9a-f]{1,12})(?: commId (0x[0-9a-f]{1,16}))? - Init COMPLETE"
)
TIMINGS = re.compile(r"Init timings\b.{0,80}?rank (\d{1,9}) nranks (\d{1,9}) total (\d{1,9}\.\d{1,9}) \((.{0,400})")
TIMING = re.compile(r"([a-z_]{1,32}) (\d{1,9}\.\d{1,9})")
COLLECTIVE = re.compile(
    r"(?P<op>[A-Z][A-Za-z]{1,31}): opCount (?P<number>[0-9a-f]{1,16}) sendbuff \S{1,32} recvbuff \S{1,32} "
    r"count (?P<count>\d{1,18}) datatype (?P<type>\d{1,3}) op \d{1,4} root -?\d{1,9} "
    r"comm (?P<comm>\S{1,32})(?: \[nranks=(?P<ranks>\d{1,9})\])?"
)
TUNING = re.compile(
    r"(?:(?P<op>[A-Z][A-Za-z]{1,31}): )?(?P<bytes>\d{1,18}) Bytes -> Algo (?P<algo>[A-Z_a-z0-9+]{1,24}) "
    r"proto (?P<proto>[A-Z_a-z0-9]{1,24})"
    r"(?: time (?P<time>\d{1,12}(?:\.\d{1,9})?)| channel\{Lo\.\.Hi\}=\{(?P<low>\d{1,5})\.\.(?P<high>\d{1,5})\})?"
)
RING = re.compile(r"^Ring \d{1,4} : ")
LINK = re.compile(
    r"\+ (?P<kind>NVL|PCI|NET|SYS|C2C|LOC)\[(?P<bw>\d{1,9}(?:\.\d{1,9})?)\] - (?P<to>GPU|NVS|NIC|NET|CPU|PCI)/"
)
INTERFACE = re.compile(r"NET/(Socket|IB)\s*: Using (.{1,300})")
NO_DEVICE = re.compile(r"NET/IB : No device found|Failed to initialize NET plugin IB")

ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
PROTOCOLS = ("LL", "LL128", "SIMPLE")
"""NCCL up to 2.23 writes their numbers (src/include/nccl_common.h of NCCL 2.20 to 2.28)"""
TYPE_BYTES = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)
"""by ncclDataType_t: int8, uint8, int32, uint32, int64, uint64, half, float, double, bfloat16, fp8 e4m3, fp8 e5m2"""


class LogLine(NamedTuple):
    """One line without its prefix."""

    host: str
    pid: int
    level: str
    text: str
    where: str | None
    """`file:line` of a warning"""


def log_line(raw: bytes) -> LogLine | None:
    """Return a line of NCCL's log, None for any other line: a job prints much else into the same file."""
    at = raw.find(b" NCCL ", 0, 4096)
    if at < 0:
        return None
    level, _, text = raw[at + 6 : at + 6 + _MAX_TEXT].partition(b" ")
    who = _who(raw[max(0, at - _MAX_PREFIX) : at]) if level in _LEVELS else None
    if who is None:
        return None
    host, pid, where = who
    return LogLine(host, pid, level.decode(), text.decode(errors="replace").rstrip(), where)


@lru_cache(maxsize=4096)
def _who(prefix: bytes) -> tuple[str, int, str | None] | None:
    """Return host, process and place in the source of what stands before `NCCL`; many lines have the same."""
    found = _WHO.search(prefix.decode(errors="replace"))
    return (found[1], int(found[2]), found[3]) if found else None


def algorithm_name(said: str) -> str:
    """Return `RING` for `RING` and for `1`, its number in old versions."""
    return ALGORITHMS[int(said)] if said.isdigit() and int(said) < len(ALGORITHMS) else said.upper()


def protocol_name(said: str) -> str:
    """Return `LL128` for `LL128` and for `1`."""
    return PROTOCOLS[int(said)] if said.isdigit() and int(said) < len(PROTOCOLS) else said.upper()


def transport_name(path: str) -> str:
    """Return how a connection is made, without the device's number: `NET/IB/GDRDMA` for `NET/IB/0/GDRDMA`."""
    parts = [part for part in path.split("/") if not part.isdigit()]
    if parts[:1] == ["NET"] and parts[-1].startswith("GDRDMA"):
        return "/".join((*parts[:2], "GDRDMA"))
    return "/".join(parts[:2]) or "unknown"
