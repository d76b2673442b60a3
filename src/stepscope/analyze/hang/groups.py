"""Which collectives of which group did each rank issue? The dumps of all ranks side by side, by number in the group."""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod

from stepscope.dataclass import dataclass
from stepscope.trace.pickles.flight_recorder import FlightDump, FlightEntry, Frame

_LIBRARY_FOLDERS = ("site-packages/", "dist-packages/", "<frozen", "<string>", "??")
_LIBRARIES = (
    *("torch/", "torchvision/", "lightning/", "pytorch_lightning/", "lightning_fabric/", "accelerate/", "deepspeed/"),
    *("transformers/", "megatron/", "stepscope/", "torchtitan/"),
)
_WHOLE_JOB = ("default_pg",)


@dataclass(frozen=True)
class GroupCalls:
    """The collectives of one group, by rank and number."""

    name: str
    desc: str
    ranks: tuple[int, ...]
    """all that belong to it as far as the dumps tell"""
    listed: bool
    """whether a dump lists the members; if not they are the ranks that issued something in it"""
    calls: Mapping[int, Mapping[int, FlightEntry]]
    """of each rank with a dump: number in the group -> call"""

    @property
    def without_dump(self) -> tuple[int, ...]:
        """Return the members of which there is no dump."""
        return tuple(r for r in self.ranks if r not in self.calls)

    def last(self, rank: int) -> int:
        """Return the number of the rank's last collective, 0 where it issued none."""
        return max(self.calls[rank], default=0)

    def holds(self, rank: int, seq: int) -> bool:
        """Return whether the rank would show the collective had it issued it: older ones are overwritten."""
        return seq >= min(self.calls[rank], default=0)


def group_calls(dumps: Mapping[int, FlightDump]) -> list[GroupCalls]:
    """Return the collectives of every group in the dumps, the group of all ranks first."""
    names: dict[str, str] = {}
    members: dict[str, set[int]] = {}
    listed: set[str] = set()
    for rank, dump in dumps.items():
        for entry in dump.entries:
            names[entry.group] = names.get(entry.group) or entry.group_desc
            members.setdefault(entry.group, set()).add(rank)
        for group in dump.groups.values():
            names[group.name] = names.get(group.name) or group.desc
            if group.ranks is not None:
                members.setdefault(group.name, set()).update(group.ranks)
                listed.add(group.name)
    for name, desc in names.items():
        if name not in listed and desc in _WHOLE_JOB:
            members.setdefault(name, set()).update(dumps)
    found = [_group(name, names[name], members.get(name, set()), name in listed, dumps) for name in names]
    return sorted((g for g in found if g.ranks), key=lambda g: (-len(g.ranks), g.name))


def _group(name: str, desc: str, members: set[int], listed: bool, dumps: Mapping[int, FlightDump]) -> GroupCalls:
    calls = {
        rank: {e.seq: e for e in dumps[rank].entries if e.group == name and not e.is_p2p}
        for rank in sorted(members)
        if rank in dumps
    }
    return GroupCalls(name, desc or name, tuple(sorted(members)), listed, calls)


def user_frame(stack: Sequence[Frame]) -> Frame | None:
    """Return the innermost frame of the user's own code, of a library where there is none; None without a stack."""
    own = (f for f in stack if f.line > 0 and not _is_library(f.file))
    return next(own, next((f for f in stack if f.line > 0), None))


def _is_library(file: str) -> bool:
    return file.startswith(_LIBRARIES) or any(folder in file for folder in _LIBRARY_FOLDERS) or not file


def elements(sizes: Sequence[Sequence[int]]) -> int:
    """Return how many elements tensors have together."""
    return sum(prod(shape) for shape in sizes)


def usual(values: Sequence[object]) -> object:
    """Return the most frequent value, the first of them where several are."""
    return Counter(values).most_common(1)[0][0]
