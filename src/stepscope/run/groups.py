"""Process groups of a rank, and their members."""

from typing import Any

from stepscope.dataclass import dataclass
from stepscope.side_file import parsed_json
from stepscope.trace.table import Trace

# a group said to be larger is not written out
_MAX_RANKS = 1 << 20
MAX_RANK = 1 << 30


@dataclass(frozen=True)
class Group:
    """One process group as one rank names it. `ranks` and `size` are None where the trace does not say."""

    name: str
    desc: str
    ranks: tuple[int, ...] | None
    size: int | None


UNKNOWN_GROUP = Group(name="?", desc="unknown", ranks=None, size=None)


def header_groups(header: dict[str, Any]) -> dict[str, Group]:
    """Return the groups listed in `distributedInfo.pg_config`, by name."""
    info = header.get("distributedInfo")
    listed = info.get("pg_config") if isinstance(info, dict) else None
    groups = {}
    for entry in listed if isinstance(listed, list) else []:
        if isinstance(entry, dict):
            name, size = str(entry.get("pg_name", "?")), entry.get("pg_size")
            is_size = isinstance(size, int) and not isinstance(size, bool) and 0 < size <= _MAX_RANKS
            desc, ranks = str(entry.get("pg_desc", "")), _rank_tuple(entry.get("ranks"))
            groups[name] = Group(name, desc, ranks, size if is_size else None)
    return groups


def group_of_record(trace: Trace, record: dict[str, int], known: dict[str, Group]) -> Group:
    """Return the group that a `record_param_comms` names; `record` holds its argument values by column.

    Long rank lists are shortened in the trace (`[0, 1, ..., 63]`): then start and stride, or the header, tell.
    """
    name = trace.text(record["group_name"]) or "?"
    listed = known.get(name)
    desc = trace.text(record["group_desc"]) or (listed.desc if listed else "")
    size = record["group_size"] if 0 < record["group_size"] <= _MAX_RANKS else (listed.size if listed else None)
    ranks = _parse_ranks(trace.text(record["group_ranks"]))
    if ranks is None or (size is not None and len(ranks) != size):
        ranks = listed.ranks if listed and listed.ranks else _regular(record, size)
    if name == "?" and ranks is None and size is None:
        return UNKNOWN_GROUP
    return Group(name=name, desc=desc, ranks=ranks, size=size if size is not None else len(ranks or ()) or None)


def _regular(record: dict[str, int], size: int | None) -> tuple[int, ...] | None:
    start, stride = record["group_start"], record["group_stride"]
    if size is None or not 0 < size <= _MAX_RANKS or not 0 <= start <= MAX_RANK or not 0 < stride <= MAX_RANK:
        return None
    return tuple(range(start, start + stride * size, stride))


def _parse_ranks(text: str | None) -> tuple[int, ...] | None:
    try:
        return _rank_tuple(parsed_json(text).value) if text else None
    except ValueError:
        return None


def _rank_tuple(ranks: object) -> tuple[int, ...] | None:
    if (
        isinstance(ranks, list)
        and 0 < len(ranks) <= _MAX_RANKS
        and all((isinstance(r, int) and not isinstance(r, bool) and 0 <= r <= MAX_RANK) for r in ranks)
    ):
        return tuple(ranks)
    return None
