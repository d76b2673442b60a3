"""Two ranks whose collectives are known: DDP's two buckets from C++, and one of each kind from Python.

Usage: collectives_job.py RANK WORLD_SIZE FOLDER
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from stepscope.record.collectives import LiveCollectives

STEPS = 8


def main(rank, world_size, folder):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    store = dist.FileStore(str(Path(folder) / "store"), world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    originals = {name: vars(dist.ProcessGroup)[name] for name in ("allreduce", "send")}
    live = LiveCollectives()
    live.install()
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Linear(512, 512))
    ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1)
    lines = []
    for step in range(STEPS):
        ddp(torch.ones(2, 512)).sum().backward()
        from_python(rank)
        lines.append(live.on_step_end(step))
        time.sleep(0.02)  # let the reader have its turn
    live.on_close(folder, rank)
    restored = all(vars(dist.ProcessGroup)[name] is method for name, method in originals.items())
    dist.all_reduce(torch.ones(1))  # the restored method works
    (Path(folder) / f"lines{rank}.json").write_text(json.dumps({"lines": lines, "restored": restored}))
    dist.destroy_process_group()


def from_python(rank):
    part, whole = torch.ones(1000), torch.ones(2000)
    dist.all_reduce(part)
    dist.all_reduce(part, async_op=True).wait()
    dist.all_gather_into_tensor(whole, part)
    dist.reduce_scatter_tensor(part, whole)
    dist.broadcast(part, 0)
    if rank == 0:
        dist.send(part, 1)
    else:
        dist.recv(part, 0)
    dist.barrier()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
