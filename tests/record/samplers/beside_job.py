"""A small training loop with one planted fault beside its passes: `beside_job.py FAULT STEPS`."""

import sys
import threading
import time

import torch

fault, steps = sys.argv[1], int(sys.argv[2])
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.randn(256, 256)
lock = threading.Lock()
over = threading.Event()
seen: list[float] = []


def count_forever() -> None:
    n = 0
    while not over.is_set():
        n += 1  # LINE hog


def write_now_and_then() -> None:
    while not over.wait(0.15):
        with lock:
            time.sleep(0.1)  # LINE holder


def log_metrics() -> None:
    with lock:  # LINE waiter
        pass


def save_statistics() -> None:
    until = time.perf_counter() + 0.2
    while time.perf_counter() < until:
        sum(range(1000))  # LINE periodic


def look_at_all(values: list[float]) -> float:
    return sum(v * v for v in values)  # LINE growth


background = {"hog": count_forever, "lock": write_now_and_then}.get(fault)
thread = threading.Thread(target=background, name="writer", daemon=True) if background else None
if thread is not None:
    thread.start()
for step in range(steps):
    loss = model(data).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if fault == "lock":
        log_metrics()
    elif fault == "periodic" and step % 23 == 22:
        save_statistics()
    elif fault == "growth":
        seen.extend([float(step)] * 4000)
        look_at_all(seen)
over.set()
if thread is not None:
    thread.join()
print(f"loss {loss.item():.9f}")
