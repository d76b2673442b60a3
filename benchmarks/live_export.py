"""What light mode and live export cost: CPU time of the training thread per step, and calls of ours.

    python benchmarks/live_export.py [--rounds 2] [--device cuda]

Processes take turns (none, light, export, export, light, none), each with the same small loop. With export, the
endpoint is scraped ten times a second, four more clients connect and say nothing, metrics are pushed to a collector
that is not there, and the helper judges the steps for alarms. The time is that of the training thread alone
(`time.thread_time_ns`), the fast tenth of many short rounds.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any
from urllib.request import urlopen

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE)]

SETTLING, ROUNDS = 40, 150
KINDS = ("none", "light", "export")
SCRAPE_S = 0.1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--child", choices=KINDS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(measured(arguments.child, arguments.device)))
        return 0
    found: dict[str, list[dict]] = {kind: [] for kind in KINDS}
    for name in (*KINDS, *reversed(KINDS)) * arguments.rounds:
        command = [sys.executable, __file__, "--child", name, "--device", arguments.device]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found[name].append(json.loads(done.stdout.splitlines()[-1]))
        print(name, found[name][-1], file=sys.stderr, flush=True)
    times = {kind: [one["step_us"] for one in found[kind]] for kind in KINDS}
    none, light, export = (statistics.median(times[kind]) for kind in KINDS)
    print(f"step unrecorded: {none:.1f} us, under light mode {light:.1f} us, with export {export:.1f} us")
    for what, added in (("light mode", light - none), ("export", export - light), ("both", export - none)):
        print(f"{what} add {added:+.1f} us = {added / 200:+.3f} % of 20 ms")
    print(f"processes of one kind lie within {max(max(x) - min(x) for x in times.values()):.1f} us")
    calls = {kind: sorted({count for one in found[kind] for count in one["calls"]}) for kind in KINDS[1:]}
    print(f"calls of ours per step: {calls}")
    print(f"scrapes answered: {sum(one['scrapes'] for one in found['export'])}; load average {os.getloadavg()[0]:.1f}")
    return 0


def measured(kind: str, device: str) -> dict:
    """Return the training thread's time per step in one process, and how many calls of ours a timed step makes."""
    import torch
    import torch.distributed as dist
    from overhead_rank import Job, calls_of_ours, thread_us

    from stepscope.record.config import RecordConfig
    from stepscope.record.hooks.install import install
    from stepscope.record.session import Recorder

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group(
            "gloo" if device == "cpu" else "nccl", store=dist.FileStore(f"{folder}/store", 1), rank=0, world_size=1
        )
        exports = {"metrics": f"{free_port()}", "otlp": "http://127.0.0.1:9", "otlp_period_s": 0.5, "on_alarm": 5}
        asked: dict[str, Any] = exports if kind == "export" else {}
        recorder = hooks = None
        if kind != "none":
            recorder = Recorder.start(RecordConfig(out=f"{folder}/run", light=True, **asked))
            hooks = install(lambda: recorder)
            hooks.loop.start()
        job = Job(device=device, width=2, layers=1, batch=1)
        for _ in range(SETTLING):
            job.step()
        scraper = Scraper(asked["metrics"]) if asked else None
        times = sorted(thread_us(job, 8) for _ in range(ROUNDS))
        calls = calls_of_ours(job, 40)
        scrapes = scraper.end() if scraper else 0
        if hooks is not None and recorder is not None:
            hooks.remove()
            recorder.close()
        dist.destroy_process_group()
    return {"step_us": statistics.mean(times[: ROUNDS // 10]), "calls": [min(calls)], "scrapes": scrapes}


class Scraper:
    """Another process's part, in a process of its own: its threads would be on the training process's lock."""

    def __init__(self, port: str) -> None:
        code = f"import sys; sys.path.insert(0, {str(HERE)!r}); from live_export import scrape; scrape({port})"
        pipe = subprocess.PIPE
        self._process = subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True)

    def end(self) -> int:
        """Return how many scrapes were answered."""
        return int(self._process.communicate("")[0].split()[-1])


def scrape(port: int) -> None:
    """Scrape until standard input ends; four connections stay silent meanwhile."""
    over, count = threading.Event(), 0

    def wait_for_end() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    silent: list[socket.socket] = []
    while not over.wait(SCRAPE_S):
        try:
            silent += [socket.create_connection(("127.0.0.1", port))] if len(silent) < 4 else []
            count += len(urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read()) > 0
        except OSError:
            continue
    print(count)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
