"""A loop profiled the way torch's profiler is used: schedule, regions, memory, a region per module, then the answer.

Run it:   python examples/recipes/profile_loop.py OUT
"""

import sys
from pathlib import Path

import torch
from torch import nn

import stepscope


def main(out: Path) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    stepscope.annotate_modules(model)
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=4)
    before = stepscope.memory_snapshot("before training")
    with stepscope.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=torch.profiler.schedule(wait=4, warmup=1, active=3, repeat=1),
        record_shapes=True,
        profile_memory=True,
        output_dir=out / "run",
    ) as prof:
        for step in range(12):
            with stepscope.region("data_loading"):
                x, y = torch.randn(32, 64), torch.randint(0, 10, (32,))
            with stepscope.region("forward_pass"):
                loss = nn.functional.cross_entropy(model(x), y)
            with stepscope.region("backward_pass"):
                loss.backward()
            if step < 4:
                with stepscope.region("gradient_clipping_warmup"):
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            with stepscope.region("optimizer_step"):
                optimizer.step()
                optimizer.zero_grad()
            with stepscope.region("lr_scheduling"):
                scheduler.step()
            prof.step()
    after = stepscope.memory_snapshot("after training")
    print(f"host memory: {before.host_bytes} -> {after.host_bytes} bytes")
    answer = stepscope.load(out / "run")
    print(answer.verdict)
    assert [int(n) for n in answer.run.ranks[0].steps.number] == [5, 6, 7]
    assert round(sum(part.pct for part in answer.account.step.parts), 6) == 100.0
    print(f"operators: {len(answer.table('operators'))}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
