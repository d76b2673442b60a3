"""Try hostile inputs on every command: no traceback, no crash, no hang, no flood of memory, nothing touched or leaked.

    python tools/fuzz.py --seconds 60               a fresh seed, printed
    python tools/fuzz.py --inputs 30000 --seed 7    the same inputs every time
    python tools/fuzz.py --traces runs/*/*.json.gz  changed copies of these
    python tools/fuzz.py --replay fuzz-failures     what failed before, or tests/data/hostile

A failing input is one JSON file in --out, with the command that runs it again. Exit code 1 where anything failed.
"""

import argparse
import secrets
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools.fuzz.case import Case, case_from
from tools.fuzz.generators import (
    changed_fields,
    hostile_exports,
    mutated_traces,
    odd_arguments,
    odd_outputs,
    other_recordings,
    side_files,
)
from tools.fuzz.oracle import Outcome, complaints
from tools.fuzz.run import Job, outcomes

GENERATORS = (
    *((26, mutated_traces), (34, changed_fields), (16, side_files), (8, hostile_exports), (6, other_recordings)),
    *((6, odd_arguments), (4, odd_outputs)),
)
"""how many of a hundred inputs come from each"""
OWN_PROCESS = 0.01
_STARTS_JOBS = ("bench", "demo", "view", "watch", "trigger", "calibrate", "predict")
_MAX_SAVED = 2
"""inputs of one complaint"""


def main() -> int:
    """Return 1 where an input failed."""
    args = _arguments()
    seed = secrets.randbelow(1 << 32) if args.seed is None else args.seed
    jobs = _replayed(args.replay) if args.replay else _generated(Random(seed), args)
    print(f"replay of {args.replay}" if args.replay else f"seed {seed}", flush=True)
    tally = Tally(None if args.replay else args.out)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:
        for case, outcome in outcomes(jobs, Path(scratch), workers=args.workers):
            tally.add(case, outcome)
    tally.print(f"--seed {seed}")
    return 1 if tally.failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, help="stop after (60, or none where --inputs is given)")
    parser.add_argument("--inputs", type=int, help="stop after so many")
    parser.add_argument("--seed", type=int, help="of the inputs; printed where it is not given")
    parser.add_argument("--workers", type=int, default=2, help="processes (2)")
    parser.add_argument("--only", help="inputs of these generators: " + ", ".join(g.__name__ for _, g in GENERATORS))
    parser.add_argument("--traces", nargs="+", type=Path, help="change these traces (JSON) instead of ours")
    parser.add_argument("--out", type=Path, default=Path("fuzz-failures"), help="folder for inputs that fail")
    parser.add_argument("--replay", type=Path, metavar="FOLDER", help="run saved inputs, a folder or one file")
    args = parser.parse_args()
    if args.seconds is None and args.inputs is None:
        args.seconds = 60.0
    return args


def _generated(rng: Random, args: argparse.Namespace) -> Iterator[Job]:
    """Yield inputs until time or number is up; the same seed gives the same inputs."""
    chosen = [(weight, g) for weight, g in GENERATORS if not args.only or g.__name__ in args.only.split(",")]
    given = {"traces": [str(path.resolve()) for path in args.traces]} if args.traces else {}
    streams = [
        (w, g(Random(rng.random()), **(given if g in (mutated_traces, changed_fields) else {}))) for w, g in chosen
    ]
    until = time.monotonic() + args.seconds if args.seconds else None
    made = 0
    while (until is None or time.monotonic() < until) and (args.inputs is None or made < args.inputs):
        (stream,) = rng.choices([s for _, s in streams], [weight for weight, _ in streams])
        case = next(stream)
        made += 1
        fills_memory = any("FROM range(" in word for word in case.argv)  # whose rest would count for the next case
        yield case, (rng.random() > OWN_PROCESS and not fills_memory) or case.argv[0] in _STARTS_JOBS


def _replayed(place: Path) -> Iterator[Job]:
    for path in sorted(place.glob("*.json")) if place.is_dir() else [place]:
        yield case_from(path.read_text()), True


class Tally:
    """What was tried and what happened."""

    def __init__(self, out: Path | None) -> None:
        self.out = out
        self.rows: dict[str, Counter[str]] = defaultdict(Counter)
        self.kinds: Counter[str] = Counter()
        self.saved: dict[str, list[str]] = defaultdict(list)
        self.peak: Counter[str] = Counter()
        self.slowest: dict[str, float] = defaultdict(float)
        self.hardest: dict[str, float] = defaultdict(float)
        self.failed = 0

    def add(self, case: Case, outcome: Outcome) -> None:
        """Count one case, and save it where it failed."""
        row = self.rows[case.kind]
        row["tried"] += 1
        row[f"exit {outcome.exit_code}"] += 1
        self.peak[case.kind] = max(self.peak[case.kind], outcome.peak_bytes)
        self.slowest[case.kind] = max(self.slowest[case.kind], outcome.took_s)
        self.hardest[case.kind] = max(self.hardest[case.kind], outcome.worked_s)
        found = complaints(case, outcome)
        row["failed"] += bool(found)
        self.failed += bool(found)
        row["unforeseen"] += bool(outcome.unforeseen)
        for complaint in [*found, *([f"(unforeseen) {outcome.unforeseen}"] if outcome.unforeseen else [])]:
            self.kinds[complaint] += 1
            if self.out is None or len(self.saved[complaint]) < _MAX_SAVED:
                self.saved[complaint].append(self._save(case))

    def _save(self, case: Case) -> str:
        if self.out is None:  # a replay: it is saved already
            return case.what
        self.out.mkdir(exist_ok=True)
        number = sum(1 for _ in self.out.iterdir())
        path = self.out / f"{case.kind.replace(' ', '-')}-{number:04d}.json"
        path.write_text(case.text)
        return f"python tools/fuzz.py --replay {path}    # {case.what}"

    def print(self, seed: str) -> None:
        """Print the table, and what failed with how to see it again."""
        columns = ("tried", "exit 0", "exit 1", "exit 2", "exit 3", "unforeseen", "failed")
        print(f"{'':12}" + "".join(f"{c:>12}" for c in columns) + f"{'peak MB':>12}{'longest s':>12}{'most CPU s':>12}")
        total: Counter[str] = sum(self.rows.values(), Counter())
        for name, row in [*sorted(self.rows.items()), ("all", total)]:
            peak = self.peak[name] if name in self.rows else max(self.peak.values(), default=0)
            slowest, hardest = (
                of[name] if name in self.rows else max(of.values(), default=0.0) for of in (self.slowest, self.hardest)
            )
            numbers = "".join(f"{row[c]:>12}" for c in columns)
            print(f"{name:12}{numbers}{peak / 1e6:>12.0f}{slowest:>12.1f}{hardest:>12.1f}")
        for complaint, count in self.kinds.most_common():
            print(f"{count:6} x {complaint}")
            _print_each(self.saved[complaint])
        print(f"{self.failed} of {total['tried']} inputs failed; {seed}")


def _print_each(lines: Iterable[str]) -> None:
    for line in lines:
        print(f"         {line!r}" if "\x1b" in line or "\n" in line else f"         {line}")


if __name__ == "__main__":
    sys.exit(main())
