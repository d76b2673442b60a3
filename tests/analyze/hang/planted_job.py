"""Gloo jobs of two ranks with a planted hang each; flight recorders are dumped by a timer, as torch does on a timeout.

planted_job.py FOLDER FAULT...
"""

import os
import sys
import threading
import time
from pathlib import Path

os.environ["TORCH_FR_BUFFER_SIZE"] = "2000"

import torch
import torch._C._distributed_c10d as c10d
import torch._inductor.codecache  # which writing a dump imports: here once for all ranks
import torch.distributed as dist


def dump_and_end(path: str, store: "dist.Store", world: int) -> None:
    """Write the dump once every rank had time to get stuck, and leave once all have written theirs."""
    Path(path).write_bytes(c10d._dump_fr_trace())  # type: ignore[attr-defined]
    store.add("dumped", 1)
    for _ in range(300):  # a rank that ended by itself writes none
        if store.add("dumped", 0) == world:
            break
        time.sleep(0.05)
    os._exit(0)


def main(rank: int, world: int, store_file: str, dump: str, fault: str) -> None:
    store = dist.FileStore(store_file, world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    pair = dist.new_group(list(range(world)), group_desc="tp")
    tensor = torch.ones(64)
    dist.all_reduce(tensor)
    dist.all_reduce(tensor, group=pair)
    dist.barrier()
    threading.Timer(3, dump_and_end, (dump, store, world)).start()
    odd = rank == 1
    try:
        if fault == "missing" and odd:
            time.sleep(60)  # line of the missing rank
        if fault == "shape":  # gloo ends a process that is sent too much, not one that gets too little
            dist.broadcast(torch.ones(96) if odd else tensor, 0)  # SHAPE
            time.sleep(60)
        if fault == "order" and odd:
            dist.broadcast(tensor, 0)  # ORDER: rank 1
            dist.all_reduce(tensor)
        dist.all_reduce(tensor)  # REDUCE
        dist.broadcast(tensor, 0)
    except RuntimeError as error:
        sys.stderr.write(f"{error}\n")
    time.sleep(60)


if __name__ == "__main__":
    ranks = []
    for fault in sys.argv[2:]:
        folder = Path(sys.argv[1], fault)
        folder.mkdir()
        for rank in range(2):
            if (pid := os.fork()) == 0:
                main(rank, 2, str(folder / "store"), str(folder / f"fr_trace_rank_{rank}"), fault)
            ranks.append(pid)
    for pid in ranks:
        os.waitpid(pid, 0)
