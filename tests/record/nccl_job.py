"""A transformer block stack trained with DDP over NCCL, all ranks on one GPU, plain or recorded.

NCCL refuses two ranks on one device unless it takes them for different hosts: `NCCL_HOSTID` per rank does that.

    python nccl_job.py WORK_FOLDER '{"mode": "plain" | "light" | "window" | "graph", "steps": 60, "ranks": 4}'
"""

import itertools
import json
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

WIDTH, SEQ, BATCH, LAYERS = 256, 256, 32, 4


def main() -> None:
    work, asked = Path(sys.argv[1]), json.loads(sys.argv[2])
    if "RANK" in os.environ:
        train(work, asked)
        return
    ranks = asked.get("ranks", 4)
    processes = [
        subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, **variables(rank, ranks, asked)})
        for rank in range(ranks)
    ]
    sys.exit(max(p.wait() for p in processes))


def variables(rank: int, ranks: int, asked: dict[str, Any]) -> dict[str, str]:
    return {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(asked.get("port", 29555)), "NCCL_HOSTID": f"host{rank}", "NCCL_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip


def train(work: Path, asked: dict[str, Any]) -> None:
    rank, mode = int(os.environ["RANK"]), asked["mode"]
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
    torch.manual_seed(3)
    layer = torch.nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
    model = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False).cuda()
    ddp = DistributedDataParallel(model, device_ids=[0])
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-4, fused=True)
    torch.manual_seed(50 + rank)
    inputs = [torch.randn(BATCH, SEQ, WIDTH, device="cuda") for _ in range(4)]
    losses, walls = [], []
    with recording(mode, work / mode, asked) as recorder:
        if recorder is not None:
            recorder.note(model=ddp, optimizer=optimizer, samples_per_step=BATCH, tokens_per_step=BATCH * SEQ)
        for step in range(asked.get("steps", 60)):
            if step % 10 == 0:  # the truth: blocks of ten steps between two synchronisations
                torch.cuda.synchronize()
                walls.append(time.perf_counter())
            with region(recorder, "data_loading"):
                x = inputs[step % 4]
            optimizer.zero_grad(set_to_none=True)
            with region(recorder, "forward_pass"), torch.autocast("cuda", torch.bfloat16):
                loss = ddp(x).float().pow(2).mean()
            with region(recorder, "backward_pass"):
                loss.backward()
            with region(recorder, "optimizer_step"):
                optimizer.step()
            losses.append(loss.detach())
            if recorder is not None:
                recorder.step()
        torch.cuda.synchronize()
        walls.append(time.perf_counter())
    truth = [(b - a) / 10 * 1e3 for a, b in itertools.pairwise(walls)]
    found = {"losses": [value.item().hex() for value in losses], "ms_per_step": truth}
    (work / f"{mode}.{asked.get('round', 0)}.{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def recording(mode: str, out: Path, asked: dict[str, Any]) -> Any:
    if mode == "plain":
        return nullcontext()
    import stepscope

    window: dict[str, Any] = {"wait": 30, "warmup": 5, "active": 5}
    return stepscope.profile(out=out, **window, **asked.get("profile", {}), light=mode == "light")


def region(recorder: Any, name: str) -> Any:
    return nullcontext() if recorder is None else recorder.region(name)


if __name__ == "__main__":
    main()
