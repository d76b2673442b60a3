"""What a step communicates and holds, seen from PyTorch's dispatcher: every collective, every allocation.

Both are dispatch modes. They work on fake tensors (sizes without data), so that a step of a thousand ranks can be
watched in one process, and on real ones.
"""

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_NAMESPACES = ("c10d", "_c10d_functional")
_NAMED = (
    ("allreduce", "all_reduce"),
    ("reducescatter", "reduce_scatter"),
    ("allgather", "all_gather"),
    ("alltoall", "all_to_all"),
    ("broadcast", "broadcast"),
    ("send", "send"),
    ("recv", "recv"),
)
# CUDA's caching allocator hands out multiples of this
_BLOCK_BYTES = 512


@dataclass(frozen=True)
class CollectiveCall:
    """One collective of this rank."""

    op: str
    group: str
    ranks: int
    #: full buffer
    size_bytes: int
    when: str


class CollectiveRecorder(TorchDispatchMode):  # type: ignore[misc]
    """Keeps a list of the collectives that pass."""

    def __init__(self, group_names: dict[tuple[int, ...], str] | None = None) -> None:
        super().__init__()
        self.when = "forward"
        self.seen: list[CollectiveCall] = []
        self._group_names = group_names or {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(t, DTensor) for t in types):
            return NotImplemented  # so that its local operators come by one by one
        op = _operation(func) if func.namespace in _NAMESPACES else None
        if op:
            self._note(op, func, args)
        return func(*args, **(kwargs or {}))

    def _note(self, op: str, func: Any, args: tuple[Any, ...]) -> None:
        group = _group_of(args)
        sizes = [_bytes_of(tree_leaves(a)) for a in args]
        size = max(sizes, default=0)
        if op == "all_gather" and func.namespace == "_c10d_functional":
            size *= group.size()
        ranks = tuple(dist.get_process_group_ranks(group))
        self.seen.append(CollectiveCall(op, self._group_names.get(ranks, "dp"), group.size(), size, self.when))


class MemoryRecorder(TorchDispatchMode):  # type: ignore[misc]
    """Keeps the sum of live storages, and which were live when it was largest."""

    def __init__(self) -> None:
        super().__init__()
        self.when = "forward"
        self.live_bytes = self.peak_bytes = 0
        self.peak_when = self.when
        # number of a storage -> bytes at the peak
        self.peak_sizes: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        # address of a live storage -> its number: addresses are used again, numbers are not
        self._numbers: dict[int, int] = {}
        self._count = 0
        self._plain_resize: Any = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(t, DTensor) for t in types):
            return NotImplemented
        out = func(*args, **(kwargs or {}))
        self.note(leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor))
        return out

    def note(self, tensors: Iterable[torch.Tensor]) -> None:
        """Count the storages of these tensors from now until they are freed."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage._cdata not in self._numbers:
                self._count += 1
                self._numbers[storage._cdata] = self._count
                self._sizes[self._count] = 0
                weakref.finalize(storage, self._note_free, storage._cdata)
                self._note_size(self._count, storage.nbytes())

    def __enter__(self) -> "MemoryRecorder":
        self._plain_resize = plain = torch.UntypedStorage.resize_

        def resize(storage: torch.UntypedStorage, size: int) -> Any:
            result = plain(storage, size)
            if storage._cdata in self._numbers:
                self._note_size(self._numbers[storage._cdata], int(size))
            return result

        torch.UntypedStorage.resize_ = resize
        super().__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        torch.UntypedStorage.resize_ = self._plain_resize
        super().__exit__(*exc)

    def peak_of(self, tensors: Iterable[torch.Tensor]) -> int:
        """Return how many bytes of the peak were in the storages of these tensors."""
        numbers = {self._numbers.get(t.untyped_storage()._cdata, 0) for t in tensors}
        return sum(self.peak_sizes.get(number, 0) for number in numbers)

    def _note_size(self, number: int, size_bytes: int) -> None:
        size_bytes = -(-size_bytes // _BLOCK_BYTES) * _BLOCK_BYTES
        self.live_bytes += size_bytes - self._sizes[number]
        self._sizes[number] = size_bytes
        if self.live_bytes > self.peak_bytes:
            self.peak_bytes, self.peak_when, self.peak_sizes = self.live_bytes, self.when, dict(self._sizes)

    def _note_free(self, address: int) -> None:
        self.live_bytes -= self._sizes.pop(self._numbers.pop(address))


def local_tensors(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Return what this rank holds of them."""
    return [t._local_tensor if isinstance(t, DTensor) else t for t in tensors]


def _operation(func: Any) -> str | None:
    plain = func.__name__.replace("_", "").lower()
    return next((op for pattern, op in _NAMED if pattern in plain), None)


def _group_of(args: tuple[Any, ...]) -> Any:
    for arg in reversed(args):
        if isinstance(arg, torch.ScriptObject) and "ProcessGroup" in str(arg):
            return dist.ProcessGroup.unbox(arg)
    name = next(arg for arg in reversed(args) if isinstance(arg, str))
    return dist.distributed_c10d._resolve_process_group(name)


def _bytes_of(leaves: Iterable[Any]) -> int:
    return sum(t.numel() * t.element_size() for t in leaves if isinstance(t, torch.Tensor))
