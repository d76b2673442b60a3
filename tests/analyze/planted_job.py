"""Run folders of jobs in which every second was planted: processes, steps, checkpoints, ends."""

import json
from pathlib import Path
from typing import Any

from tests.analyze.step_logs import log_lines, write_log

NS = 1_000_000_000
EPOCH = 1_800_000_000 * NS  # some day in 2027


def at(seconds: float) -> int:
    return EPOCH + round(seconds * NS)


def plant(
    folder: Path, *, start: float, steps: list[list[tuple[float, dict[str, float]]]], first: float, end: float,
    killed: tuple[int, ...] = (), launched: float | None = None, launch_id: str = "one", restart: int = 0,
    loads: tuple[tuple[float, float, str], ...] = (), saves: tuple[tuple[float, float | None, str], ...] = (),
    after: dict[str, float] | None = None, launch_end: float | None = None, exit_code: int = 0,
    ends: dict[int, float] | None = None, save_ranks: tuple[int, ...] = (0,),
) -> None:  # fmt: skip
    """Write a run folder: per rank a process that starts, steps of so many seconds with regions in them, an end."""
    folder.mkdir(parents=True)
    out = str(folder.with_name(folder.name.partition("-")[0]))
    described = {
        "world_size": len(steps),
        "config": {"out": out, "run_id": launch_id},
        "environment": {"TORCHELASTIC_RESTART_COUNT": str(restart)},
        "created": f"2027-01-01T00:00:{int(start) % 60:02d}+00:00",
    }
    (folder / "run.json").write_text(json.dumps(described))
    for rank, of_rank in enumerate(steps):
        lifetime = {
            "launched_ns": at(start if launched is None else launched),
            "process_ns": at(start),
            "torch_ns": at(start + 1),
            "group_ns": [at(start + 1), at(start + 1.5)],
            "checkpoints": [["load", at(a), at(b), path] for a, b, path in loads],
        }
        in_ms = [{"outside": 1000 * dur} for dur, _ in of_rank]
        for ms, (_, regions) in zip(in_ms, of_rank, strict=True):
            ms |= {name: 1000 * s for name, s in regions.items()}
            ms["outside"] -= 1000 * sum(regions.values())
        lines = log_lines(in_ms, window=range(len(in_ms), len(in_ms)), at_ns=at(first))
        write_log(folder, rank, lines, ranks=len(steps), lifetime=lifetime)
        facts: dict[str, Any] = {
            "ended": "killed" if rank in killed else "closed",
            "ended_ns": at((ends or {}).get(rank, end)),
            "checkpoints": [["save", at(a), b and at(b), path] for a, b, path in saves if rank in save_ranks],
        }
        if rank not in killed:
            own = {name: {"ns": round(s * NS), "n": 1} for name, s in (after or {}).items()}
            facts["after_steps"] = own
        (folder / f"rank{rank:05d}.facts.jsonl").write_text(json.dumps(facts) + "\n")
    if launch_end is not None:
        launch = {"launch_id": launch_id, "ended_ns": at(launch_end), "exit_code": exit_code}
        (folder / "launch.jsonl").write_text(json.dumps(launch))


def plain(count: int, dur: float = 1.0) -> list[tuple[float, dict[str, float]]]:
    return [(dur, {})] * count


def plant_meter(
    folder: Path, rank: int, *, device: str, power: list[tuple[float, float]], read: tuple[float, float],
    begin: float = 5e6,
) -> None:  # fmt: skip
    """Write readings of a counter from when to when; the device takes so many watts up to each time."""
    lines: list[dict[str, Any]] = [
        {"kind": "device", "name": "NVIDIA H200", "uuid": device},
        {"kind": "counters", "device": "nvml", "host_name": "node"},
    ]
    for tick in range(round(10 * read[0]), round(10 * read[1]) + 1):
        now, joules, since = tick / 10, begin, 0.0
        for until, watts in power:
            joules += watts * max(0.0, min(now, until) - since)
            since = until
        lines.append({"kind": "energy", "time_ns": at(now), "energy_j": joules, "fresh": 0, "power_w": None})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / f"rank{rank:05d}.telemetry.jsonl").write_text(text)


SAVE = (9.0, 9.5, "/ckpt/last.pt")


def plant_two_attempts(
    where: Path, *, over: float = 12.9, saved: bool = True, loaded: bool = True, **second: Any
) -> None:
    """Nine steps, rank 0 saves after six of them, rank 1 is killed; then a restart with six steps."""
    steps = [[*plain(5), (1.5, {"checkpoint": 0.5} if saved and rank == 0 else {}), *plain(3)] for rank in range(2)]
    plant(
        where / "run", start=0, first=3, end=over, steps=steps, killed=(0, 1), saves=(SAVE,) if saved else (),
        ends={0: over + 0.5},
    )  # fmt: skip
    later = over + 5.1
    loads = ((later - 2, later - 1, SAVE[2]),) if loaded else ()
    about = {"restart": 1, "launched": 0, "launch_end": later + 7, "loads": loads, **second}
    plant(where / "run-2", start=over + 1.1, first=later, end=later + 6.5, steps=[plain(6)] * 2, **about)
