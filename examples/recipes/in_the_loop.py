"""Numbers while training runs: phases of a step, late ranks, throughput, MFU, alerts, TensorBoard, expected traffic.

Run it:   python examples/recipes/in_the_loop.py OUT
"""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stepscope


def main(out: Path) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(640, 64), torch.randint(0, 10, (640,))), batch_size=32)
    loss_fn = nn.CrossEntropyLoss()

    print(stepscope.quick_check(model, loader, loss_fn, optimizer, steps=5))

    detector = stepscope.StragglerDetector(window=100, threshold=2.0)
    flops = 6 * sum(p.numel() for p in model.parameters()) * 32
    tracker = stepscope.PerformanceTracker(
        window=50,
        flops_per_step=flops,
        peak_tflops=0.1,
        detector=detector,
        log_to=f"tensorboard:{out / 'tensorboard'}",
        on_alert=lambda alert: print("alert:", alert.text),
    )
    for x, y in loader:
        with detector.own_time():
            loss = loss_fn(model(x), y)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        detector.step()
        tracker.step((x, y), loss=loss.item())
    summary = tracker.close()
    print(f"{summary['throughput/samples_per_s']:.0f} samples/s, MFU {summary['efficiency/mfu']:.1%}")
    print(f"late ranks: {detector.stragglers()}")
    assert summary["steps"] == 20 and list((out / "tensorboard").glob("events.out.tfevents.*"))

    profiler = stepscope.CommunicationProfiler(enabled=True)
    for name in ("estimate_ddp_comm_cost", "estimate_fsdp_comm_cost"):
        cost = getattr(profiler, name)(model, world_size=8)
        print(f"{name}: {cost.collectives} collectives, {cost.sent_bytes:.0f} bytes per rank and step")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
