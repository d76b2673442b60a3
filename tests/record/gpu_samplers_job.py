"""Two NCCL ranks on one GPU whose memory and collectives are known, recorded with everything on.

python gpu_samplers_job.py FOLDER          starts the ranks, which then run as  RANK=... gpu_samplers_job.py FOLDER
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

RANKS, STEPS, WIDTH = 2, 24, 1024


def main() -> None:
    if "RANK" in os.environ:
        train(Path(sys.argv[1]))
        return
    ranks = [subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, **variables(r)}) for r in range(RANKS)]
    sys.exit(max(rank.wait() for rank in ranks))


def variables(rank: int) -> dict[str, str]:
    return {
        "RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29733", "NCCL_HOSTID": f"rank{rank}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1",
    }  # fmt: skip


def train(folder: Path) -> None:
    import torch
    import torch.distributed as dist

    import stepscope

    torch.cuda.set_device(0)
    dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
    model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)]).cuda()
    ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=8)
    optimizer = torch.optim.AdamW(ddp.parameters())
    part, whole = torch.ones(WIDTH, device="cuda"), torch.ones(RANKS * WIDTH, device="cuda")
    settings: dict[str, Any] = {"wait": 8, "warmup": 2, "active": 3, "memory": True, "nccl_log": True}
    with stepscope.profile(out=folder / "run", **settings) as recording, stepscope.annotate_modules(model):
        for _ in range(STEPS):
            with recording.region("forward_pass"):
                loss = ddp(torch.randn(256, WIDTH, device="cuda")).square().mean()
            with recording.region("backward_pass"):
                loss.backward()
            dist.all_gather_into_tensor(whole, part)
            with recording.region("optimizer_step"):
                optimizer.step()
            optimizer.zero_grad()
            recording.step()
        torch.cuda.synchronize()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
