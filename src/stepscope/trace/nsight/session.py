"""Where and when was an export recorded: clock, machine, devices, and which rank was each process?

wall clock    TARGET_INFO_SESSION_START_TIME.utcEpochNs is time 0; where the times of events count from when the
              machine started instead, that table's systemClockNs is the capture's start
rank          by NCCL's communicators where their payloads are there; by RANK and WORLD_SIZE in the environment
              of the command, where the export is of one rank's command; else the file's name or the order tells
"""

from collections.abc import Sequence
from typing import Any

from stepscope.dataclass import dataclass
from stepscope.trace.nsight.database import Database, integers
from stepscope.trace.nsight.nccl_payload import NcclCall, world_of

_MAX_EPOCH_NS = 1 << 62
_MAX_DEVICES = 1024
_MAX_RANKS = 1 << 20
_DEVICE_FIELDS = (
    ("id", "id"),
    ("cuDevice", "id"),
    ("totalMemory", "totalGlobalMem"),
    ("smCount", "numSms"),
    ("computeMajor", "computeMajor"),
    ("computeMinor", "computeMinor"),
)
"""columns of TARGET_INFO_GPU and what Kineto's `deviceProperties` call them; a later one overwrites an earlier"""


@dataclass(frozen=True)
class Session:
    """What holds for all processes of an export."""

    base_ns: int
    """to be added to all times"""
    notes: tuple[str, ...]
    header: dict[str, Any]
    environment_rank: tuple[int, int | None] | None
    """rank and world size of the command that was recorded"""


def session_of(db: Database) -> Session:
    """Return what an export says of its recording."""
    base_ns, notes = _wall_clock(db)
    header: dict[str, Any] = {"nsight": _versions(db)}
    devices = _devices(db)
    if devices:
        header["deviceProperties"] = devices
    host = _system(db, "Hostname")
    if host:
        header["host_name"] = host
    return Session(base_ns, notes, header, _environment_rank(db))


def rank_header(
    session: Session, process: int, made: dict[int, list[NcclCall]], *, is_only: bool
) -> tuple[dict[str, Any], str | None]:
    """Return the header of one process with its rank where it is known, and a line where two sources disagree."""
    by_nccl = world_of(made.get(process, ()))
    said = session.environment_rank if is_only else None
    rank, world = by_nccl or said or (None, None)
    header = dict(session.header)
    if rank is None:
        return header, None
    header["distributedInfo"] = {"rank": rank, "backend": "nccl", "pg_config": _groups(made)} | (
        {"world_size": world} if world else {}
    )
    if by_nccl and said and said[0] != by_nccl[0]:
        return header, f"NCCL says rank {by_nccl[0]}, the command's RANK says {said[0]}; NCCL's is taken"
    return header, None


def _groups(made: dict[int, list[NcclCall]]) -> list[dict[str, Any]]:
    """Return the communicators as process groups; their ranks where all of them are processes of this export."""
    world = {process: world_of(calls) for process, calls in made.items()}
    members: dict[int, dict[int, int | None]] = {}
    sizes: dict[int, int] = {}
    for process, calls in made.items():
        own = world[process]
        for call in calls:
            if call.communicator is None or not call.num_ranks or call.rank is None:
                continue
            sizes[call.communicator] = call.num_ranks
            members.setdefault(call.communicator, {})[call.rank] = own[0] if own else None
    groups = []
    for communicator, size in sizes.items():
        of = members[communicator]
        entry: dict[str, Any] = {"pg_name": f"{communicator:#x}", "pg_desc": "", "pg_size": size}
        if len(of) == size and None not in of.values():
            entry["ranks"] = [of[rank] for rank in sorted(of)]
        elif any(own and own[1] == size for own in world.values()):
            entry["ranks"] = list(range(size))
        groups.append(entry)
    return groups


def _wall_clock(db: Database) -> tuple[int, tuple[str, ...]]:
    started = _first(db, "TARGET_INFO_SESSION_START_TIME", ("utcEpochNs", "systemClockNs"))
    details = _first(db, "ANALYSIS_DETAILS", ("startTime",))
    epoch, system_clock = started.get("utcEpochNs"), started.get("systemClockNs")
    if epoch is None or not 0 <= epoch < _MAX_EPOCH_NS:
        return 0, ("the export has no wall clock: its times count from the start of the capture",)
    if system_clock and system_clock == details.get("startTime") and 0 < system_clock < _MAX_EPOCH_NS:
        return epoch - system_clock, ()
    return epoch, ()


def _first(db: Database, table: str, columns: Sequence[str]) -> dict[str, int]:
    """Return the integers of a table's first row."""
    for chunk in db.chunks(table, columns):
        return {name: chunk[name][0] for name in columns if type(chunk[name][0]) is int}
    return {}


def _versions(db: Database) -> dict[str, str]:
    """Return product and schema version of the export."""
    wanted = {"EXPORT_SCHEMA_VERSION": "schema", "EXPORT_PRODUCT_VERSION": "version"}
    found = {}
    for chunk in db.chunks("META_DATA_EXPORT", ("name", "value")):
        for raw, value in zip(chunk["name"], chunk["value"], strict=True):
            name = wanted.get(db.text(raw) or "")
            if name:
                found[name] = (db.text(value) or "")[:64]
    return found


def _devices(db: Database) -> list[dict[str, Any]]:
    columns = tuple(name for name, _ in _DEVICE_FIELDS)
    devices: list[dict[str, Any]] = []
    for chunk in db.chunks("TARGET_INFO_GPU", ("name", *columns)):
        numbers = {name: integers(chunk[name]) for name in columns}
        for i, raw in enumerate(chunk["name"]):
            known = {as_: int(numbers[name][0][i]) for name, as_ in _DEVICE_FIELDS if numbers[name][1][i]}
            devices.append({"name": db.text(raw) or "", **known})
    return devices[:_MAX_DEVICES]


def _system(db: Database, wanted: str) -> str | None:
    for chunk in db.chunks("TARGET_INFO_SYSTEM_ENV", ("name", "value")):
        for raw, value in zip(chunk["name"], chunk["value"], strict=True):
            if db.text(raw) == wanted:
                return (db.text(value) or "")[:256] or None
    return None


def _environment_rank(db: Database) -> tuple[int, int | None] | None:
    """Return RANK and WORLD_SIZE of the command. Nothing else of its environment is looked at: it holds secrets."""
    found: dict[str, int] = {}
    for chunk in db.chunks("META_DATA_CAPTURE", ("name", "value")):
        for raw, value in zip(chunk["name"], chunk["value"], strict=True):
            if (db.text(raw) or "").endswith(":ENVIRONMENT_VARIABLE"):
                name, _, said = (db.text(value) or "").partition("=")
                number = said.strip('"')
                if name in ("RANK", "WORLD_SIZE") and number.isdecimal() and len(number) < 8:
                    found[name] = int(number)
    rank, world = found.get("RANK"), found.get("WORLD_SIZE")
    if rank is None or rank >= (world or _MAX_RANKS):
        return None
    return rank, world if world else None
