"""Compare stepscope's toolkit with independent measurements on one GPU; exit 1 where one differs by more than 2 %.

    PYTHONPATH=src python benchmarks/gpu_toolkit.py            # 2 NCCL ranks share the GPU
    PYTHONPATH=src python benchmarks/gpu_toolkit.py --ranks 4  # under MPS if you like

Independent: own CUDA events, torch.cuda.memory_stats, own formulas, torch's FLOP counter. Without CUDA only the ranks'
part runs, on gloo, to try the script.
"""

import argparse
import gc
import json
import os
import socket
import statistics
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

import stepscope

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
ROWS: list[tuple[str, float, float, float, float]] = []  # what, toolkit, independent, percent, limit


def check(what, toolkit, independent, limit=2.0):
    percent = 100 * (toolkit - independent) / independent if independent else (0.0 if not toolkit else float("inf"))
    ROWS.append((what, toolkit, independent, percent, limit))


def show():
    width = max(len(row[0]) for row in ROWS)
    for what, toolkit, independent, percent, limit in ROWS:
        verdict = "ok" if abs(percent) <= limit else "OFF"
        print(
            f"{what:<{width}}  toolkit {toolkit:>14.6g}  independent {independent:>14.6g}  {percent:+8.3f} %  {verdict}"
        )
    return all(abs(row[3]) <= row[4] for row in ROWS)


# --- MFU
LAYERS, WIDTH, BATCH = 8, 8192, 8192
PEAK = 989.4e12  # H200 SXM, dense bf16, by its data sheet


def mfu():
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))).to(DEVICE, torch.bfloat16)
    x = torch.randn(BATCH, WIDTH, device=DEVICE, dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

    def step():
        model(x).float().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def own_ms(steps=20):
        for _ in range(3):
            step()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(steps):
            step()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / steps

    own_ms()  # clocks settle
    ab, own = stepscope.ABProfiler(), []
    for _ in range(3):
        own.append(own_ms())
        ab.profile_config("A", None, step, num_steps=20)
    toolkit_ms = statistics.median(statistics.fmean(run) for run in ab.runs["A"])
    independent_ms = statistics.median(own)
    check("step time, ms", toolkit_ms, independent_ms)
    # forward 2 B D^2 per layer, backward twice that, but no gradient of the input
    flops = 2 * BATCH * WIDTH**2 * (3 * LAYERS - 1)
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        step()
    check("FLOPs per step", flops, counter.get_total_flops(), 0.01)
    found = stepscope.calculate_mfu(flops / BATCH, BATCH, toolkit_ms / 1e3, 1)  # the peak by the device's name
    check("MFU", found if found is not None else 0.0, counter.get_total_flops() / (independent_ms / 1e3) / PEAK)
    print(f"MFU {found:.4f} on {torch.cuda.get_device_name()}, {independent_ms:.3f} ms per step")


# --- memory
def memory():
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.memory._record_memory_history()
    profiler = stepscope.MemoryProfiler()
    model = nn.Sequential(*(nn.Linear(4096, 4096, bias=False) for _ in range(8))).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    for _ in range(2):
        profiler.reset_peak()
        model(torch.randn(8192, 4096, device=DEVICE)).square().mean().backward()
        optimizer.step()
    profiler.snapshot("step")
    stats = torch.cuda.memory_stats()
    row = profiler.report()[-1]
    check("allocated, GB", row["allocated_GB"], stats["allocated_bytes.all.current"] / 1e9)
    check("reserved, GB", row["reserved_GB"], stats["reserved_bytes.all.current"] / 1e9)
    check("peak allocated, GB", row["max_allocated_GB"], stats["allocated_bytes.all.peak"] / 1e9)
    held = stepscope.memory_breakdown()
    states = 8 * 4096**2 * 4
    for name, factor in (("parameters", 1), ("gradients", 1), ("optimizer", 2)):
        check(f"{name}, bytes", held["categories"][name], factor * states)
    check("categories together", sum(held["categories"].values()), torch.cuda.memory_allocated())
    sources = held["sources"] or {}
    check("source lines together", sum(sources.values()), torch.cuda.memory_allocated())
    # gradients and activations of backward's own thread have no line of Python
    named = sum(size for line, size in sources.items() if line.startswith(__file__))
    check("of lines here: parameters, optimizer, bytes", named, 3 * states)
    items = {item["id"]: item for item in stepscope.diagnose_memory_pressure()}
    total = torch.cuda.get_device_properties(0).total_memory
    peak = torch.cuda.memory_stats()["reserved_bytes.all.peak"]
    check("peak of the device, %", items["memory_pct_of_limit"]["value"], 100 * peak / total)
    torch.cuda.memory._record_memory_history(enabled=None)


# --- ranks
def rank_main():
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if CUDA:
        torch.cuda.set_device(0)
    dist.init_process_group("nccl" if CUDA else "gloo")
    count = (64 << 20) // 4 if CUDA else 1 << 20
    tensor, all_reduce = torch.zeros(count, device=DEVICE), stepscope.ProfiledAllReduce()
    warm = stepscope.ProfiledAllReduce()
    for _ in range(5):
        warm(tensor)
    warm.summary()
    dist.barrier()
    calls = 20
    if CUDA:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
    began = time.perf_counter()
    for _ in range(calls):
        all_reduce(tensor)
    if CUDA:
        end.record()
        torch.cuda.synchronize()
    own_ms = begin.elapsed_time(end) if CUDA else 1e3 * (time.perf_counter() - began)
    found = all_reduce.summary()
    own_bus = 2 * (ranks - 1) / ranks * calls * tensor.nbytes / own_ms / 1e6
    check(f"all-reduce bus bandwidth, {ranks} ranks, GB/s", found["bus_bandwidth_GBps"], own_bus, 2.0 if CUDA else 1e9)
    link = 100e9
    efficiency = stepscope.calculate_comm_efficiency(calls * tensor.nbytes, own_ms / 1e3, link)
    check("communication efficiency", efficiency, own_bus * 1e9 / link)

    alpha, beta = stepscope.measure_alpha_beta(None, [2**16, 2**20, 2**23, 2**26], 2, 5)
    predicted = stepscope.CollectiveTimePredictor(alpha, beta, ranks).allreduce_ring(tensor.nbytes)
    if rank == 0:
        size = f"{tensor.nbytes / 1e6:.0f} MB"
        print(f"predicted all-reduce of {size}: {1e3 * predicted:.2f} ms, own {own_ms / calls:.2f} ms")

    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(4))).to(DEVICE)
    x = torch.randn(256, 1024, device=DEVICE)
    ddp = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=9)
    loader = torch.utils.data.DataLoader(torch.randn(2048, 1024), batch_size=256)
    health = stepscope.quick_health_check(ddp, loader, 3)
    profiler = stepscope.DDPProfiler(ddp)
    profiler.profile_step(x)
    buckets = profiler.analyze_bucket_efficiency(3)
    check("DDP bucket bytes", sum(b["size_bytes"] for b in buckets["buckets"]), 4 * 1024**2 * 4, 0.01)

    def layer(x):
        y = model[0](x)
        dist.all_reduce(y)
        return y

    tp = stepscope.TPProfiler(ranks)
    found = tp.profile_layer(lambda x: layer(x).detach(), x)
    check("TP all-reduces per call", sum(c["calls"] for c in found["collectives"]), 1.0)
    check("TP bytes per call", sum(c["bytes"] for c in found["collectives"]), x.nbytes, 0.01)
    late = stepscope.detect_stragglers(5, work=lambda: time.sleep(0.02 + 0.02 * rank))
    check("planted straggler", (late["stragglers"] or [-1])[0], ranks - 1, 0.01) if ranks == 2 else None
    from torch.distributed.fsdp import fully_shard

    sharded = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(4))).to(DEVICE)
    for part in sharded:
        fully_shard(part)
    fully_shard(sharded)
    forward = stepscope.ZeROProfiler(3, ranks).profile_forward(sharded, x)
    check("FSDP gathers per forward", forward["gathers"], 4)
    check("FSDP gathered bytes", forward["gathered_bytes"], 4 * 1024**2 * 4, 0.01)
    if rank == 0:
        print(f"health: stragglers {health['stragglers']}")
        print("RANKS " + json.dumps(ROWS))
    dist.barrier()
    dist.destroy_process_group()


def start_ranks(ranks):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    jobs = []
    for rank in range(ranks):
        env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": "0", "OMP_NUM_THREADS": "2"}
        # NCCL refuses ranks that share a device unless they seem to be on different hosts
        env |= {"NCCL_HOSTID": f"rank{rank}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "KINETO_LOG_LEVEL": "99"}
        jobs.append(subprocess.Popen([sys.executable, __file__, "--rank"], env=env, text=True, stdout=subprocess.PIPE))
    said = [job.communicate(timeout=300)[0] for job in jobs]
    head, _, tail = said[0].partition("RANKS ")
    print(head)
    if any(job.returncode for job in jobs) or not tail:
        print("the ranks failed")
        return False
    ROWS.extend(map(tuple, json.loads(tail.splitlines()[0])))
    return True


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        rank_main()
        sys.exit(0)
    began = time.time()
    if CUDA:
        mfu()
        memory()
        torch.cuda.empty_cache()
    complete = start_ranks(args.ranks)
    fine = show()
    said = "all" if fine and complete else "NOT all"
    print(f"{time.time() - began:.0f} s; {said} within their limits")
    sys.exit(0 if fine and complete else 1)
