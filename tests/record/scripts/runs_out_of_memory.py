"""Trains on the CPU with a stand-in for CUDA's allocator, which runs out of memory within step FAILS_AT."""

import gzip
import pickle
import sys

import torch

snapshot, fails_at, way = sys.argv[1], int(sys.argv[2]), sys.argv[3]
observers: list = []
torch._C._cuda_attach_out_of_memory_observer = observers.append
torch._C._cuda_isHistoryEnabled = lambda: False
torch.cuda.memory._record_memory_history = lambda **arguments: None


def allocators_snapshot():
    if way == "broken":
        raise RuntimeError("no snapshot today")
    found = pickle.loads(gzip.decompress(open(snapshot, "rb").read()))  # noqa: SIM115
    frames = [{"filename": __file__, "line": 40, "name": "forward"}]
    failed = {"action": "oom", "device_free": 1 << 20, "size": 512 << 20, "stream": 0, "time_us": 1, "frames": frames}
    found["device_traces"][0].append(failed)
    return found


torch.cuda.memory._snapshot = allocators_snapshot


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)

    def forward(self, x):
        if step == fails_at:
            for call, _ in [one for one in torch.cuda._queued_calls if "stepscope" in str(one[1])]:
                call()  # as the first use of CUDA does
            for observer in observers:
                assert observer(0, 512 << 20, 1 << 30, 1 << 20) is None
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 512.00 MiB")
        return self.inner(x)


model = torch.nn.Sequential(Block(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(4):  # noqa: B007 - the model reads it
    try:
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    except torch.OutOfMemoryError:
        if way != "caught":
            raise
