"""Runs every loop twice on this rank, first plain, then with the hooks, and leaves what the hooks told as JSON."""

import json
import os
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import frameworks
import parallel
import plain
import torch
import torch.distributed as dist
import updates

from stepscope.record.hooks.install import install

LOOPS = [
    f
    for module in (plain, parallel, frameworks)
    for name, f in vars(module).items()
    if callable(f) and getattr(f, "__module__", None) == module.__name__ and not name.startswith("_")
]


def losses_of(make: Any) -> Any:
    def loop() -> list[str]:
        return [float(loss.detach()).hex() for loss in make()]

    loop.__name__ = make.__name__
    return loop


LOOPS += [losses_of(getattr(updates, name)) for name in updates.NAMES]


class Told:
    """Stands for the recorder: which regions each step had, how often, and how many times a gap was left out."""

    def __init__(self, *, routine: bool) -> None:
        self._routine = routine
        self.steps: list[dict[str, int]] = []
        self.late = self.gaps = 0
        self.passed = 0  # steps that were only timed
        self.regions = SimpleNamespace(nvtx=None)
        self.waits_on_host = True
        self.facts: dict[str, Any] = {}
        self._open: list[str] = []
        self._regions: Counter[str] = Counter()
        self._held: Counter[str] | None = None

    def enter(self, name: str, at_ns: int | None) -> None:
        self._open.append(name)
        self._regions[name] += name != "loader_start"  # epochs begin in different steps of these loops

    def leave(self, name: str, at_ns: int | None) -> None:
        while self._open and self._open.pop() != name:
            pass

    def step_may_end(self, at_ns: int) -> int:
        self._held = Counter(self._regions)
        return at_ns

    def step_end(self, *, at_ns: int | None = None) -> None:
        self.late += at_ns is not None
        ended = self._held if at_ns is not None and self._held is not None else self._regions
        self.steps.append({name: count for name, count in ended.items() if count})
        self._regions = self._regions - ended
        self._held = None

    def steps_to_time(self, short_ns: int) -> int:
        return 1 << 30 if self._routine else 0

    def mark_step_end(self) -> None:
        return None

    def steps_passed(self, steps: list[tuple[int, dict[str, dict[str, int]], None]]) -> None:
        self.passed += len(steps)
        self.steps += [
            {
                name: region["n"]
                for name, region in regions.items()
                if name not in ("loader_start", "garbage_collection")
            }
            for _, regions, _ in steps
        ]

    def step_begin(self) -> None:
        self.gaps += 1
        self._regions.clear()

    def note(self, **facts: Any) -> None:
        self.facts.update(facts)


def hooked(loop: Any, *, routine: bool) -> dict[str, Any]:
    told = Told(routine=routine)
    hooks = install(lambda: told)
    hooks.loop.start()  # as after init_process_group
    try:
        losses = loop()
        hooks.finish()
    finally:
        hooks.remove()
    facts = {name: type(v).__name__ if name in ("model", "optimizer") else v for name, v in told.facts.items()}
    return {
        "losses": losses, "steps": told.steps, "late": told.late, "open": told._open, "passed": told.passed,
        "facts": facts,
    }  # fmt: skip


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    out: dict[str, Any] = {}
    for loop in LOOPS:
        if len(sys.argv) > 2 and loop.__name__ not in sys.argv[2:]:
            continue
        torch.manual_seed(11)
        plain_losses = loop()
        torch.manual_seed(11)
        found = hooked(loop, routine=False)
        torch.manual_seed(11)
        routine = hooked(loop, routine=True)
        profiled = sys.getprofile() is not None
        out[loop.__name__] = {"plain_losses": plain_losses, "profiled": profiled, **found, "routine": routine}
    Path(sys.argv[1], f"rank{os.environ['RANK']}.json").write_text(json.dumps(out))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
