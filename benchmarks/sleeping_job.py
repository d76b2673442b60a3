"""Two gloo ranks that train a small model, rank 1 asleep in every step; the job of `false_stragglers.py`.

    python sleeping_job.py train SLEEP_MS STEPS            the sleep in every step; prints how long each took
    python sleeping_job.py compare SLEEP_MS STRETCHES      in every second stretch of steps; prints mean steps of each

Starts both ranks itself. Times are of the rank's own clock, from the end of one step to the end of the next.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

STRETCH, WARMUP = 6, 8
WIDTH, BATCH, LAYERS = 512, 128, 4
RANKS = 2


def main() -> int:
    way, sleep_ms, count = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    return launch() if "RANK" not in os.environ else train(way, sleep_ms, count)


def launch() -> int:
    """Start both ranks and wait for them."""
    with tempfile.TemporaryDirectory() as folder:
        environ = {**os.environ, "WORLD_SIZE": str(RANKS), "STORE": f"{folder}/store"}
        environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        command = [sys.executable, "-W", "ignore", *sys.argv]
        ranks = [subprocess.Popen(command, env={**environ, "RANK": str(r), "LOCAL_RANK": str(r)}) for r in range(RANKS)]
        return max(abs(rank.wait()) for rank in ranks)


def train(way: str, sleep_ms: float, count: int) -> int:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=f"file://{os.environ['STORE']}", rank=rank, world_size=RANKS)
    layers = [layer for _ in range(LAYERS) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(BATCH, WIDTH)
    step_ms: list[float] = []
    slept_ms: list[float] = []
    since = time.perf_counter()
    for step in range(WARMUP + count * STRETCH if way == "compare" else count):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        if sleep_ms and rank == 1 and (way == "train" or (step - WARMUP) // STRETCH % 2 == 0):
            lies_down = time.perf_counter()
            time.sleep(sleep_ms / 1000)
            slept_ms.append((time.perf_counter() - lies_down) * 1000)
        loss.backward()
        optimizer.step()
        now = time.perf_counter()
        step_ms.append((now - since) * 1000)
        since = now
    if rank == 1:
        said = {"slept_ms": slept_ms} if way == "train" else {"stretch_ms": stretches(step_ms[WARMUP:])}
        print(json.dumps(said), flush=True)
    dist.destroy_process_group()
    return 0


def stretches(step_ms: list[float]) -> list[float]:
    """Return the mean step of each stretch; the first step of one still ends what the last began, and is left out."""
    parts = [step_ms[i : i + STRETCH] for i in range(0, len(step_ms), STRETCH)]
    return [statistics.fmean(part[1:]) for part in parts]


if __name__ == "__main__":
    sys.exit(main())
