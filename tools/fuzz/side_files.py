"""Files that commands read beside traces, or instead of them: hostile values, damage, and things that are no files."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from tools.fuzz.case import Case, Recipe, node, seed, text
from tools.fuzz.fields import json_paths
from tools.fuzz.forged_cache import any_forgery
from tools.fuzz.seeds import OUTPUTS, any_command, run_files, seed_json, seed_text
from tools.fuzz.values import VALUES, WORDS

_COLLECTIVE = ("predict", "collective", "--op", "all_reduce", "--bytes", "1MB", "--world-size", "2", "--json", "-")
_STRATEGY = ("predict", "strategy", "--world-size", "8", "--seq-len", "128", "--sequences", "64", "--device", "H200")
_SMALL = ("--layers", "2", "--d-model", "64", "--heads", "4", "--vocab", "256")


@dataclass(frozen=True)
class Side:
    """A kind of file."""

    place: str
    seed: str
    commands: tuple[tuple[str, ...], ...] = ()
    """that read it; any command that reads a run where there are none"""


SIDES = (
    Side("run/run.json", "gloo-linear/run.json"),
    Side("run/rank00000.steps.jsonl", "gloo-linear/rank00000.steps.jsonl"),
    Side("run/rank00001.steps.jsonl", "gloo-linear/rank00001.steps.jsonl", (("watch", "run", "--once"),)),
    Side("run/live/rank00001.jsonl", "side_files/live_status.jsonl", (("watch", "run", "--once"),)),
    Side("run/rank00001.flight_recorder.jsonl", "gloo-linear/rank00001.flight_recorder.jsonl"),
    Side(
        "run/rank00000.owners.json.gz",
        "side_files/owners.json",
        (
            ("code", "run", "--json", "-"),
            ("code", "run", "--modules"),
            ("report", "run", "--json", "-"),
            ("report", "run", "--html", "out.html"),
            ("whatif", "run", "--without", "train.py:21", "--json", "-"),
            ("whatif", "run", "--scale", "module:0=0.5"),
            ("export", "run", "--csv", "tables"),
        ),
    ),
    Side("run/rank00000.telemetry.jsonl", "side_files/telemetry.jsonl"),
    Side("run/rank00000.collectives.jsonl", "side_files/collectives.jsonl"),
    Side("run/rank00001.memory.jsonl", "side_files/memory.jsonl"),
    Side("run/rank00001.nccl.log", "side_files/nccl.log"),
    Side(
        "run/rank00001.flight_recorder.dump",
        "side_files/flight_recorder.dump",
        (("hang", "run"), ("hang", "run/rank00001.flight_recorder.dump", "--json", "-"), ("report", "run")),
    ),
    Side(
        "run/rank00001.memory.pickle",
        "side_files/memory.pickle",
        (
            ("memory", "run", "--what-if", "zero=1", "--what-if", "checkpointing=2"),
            ("memory", "run/rank00001.memory.pickle", "--what-if", "batch=2x", "--json", "-"),
            ("report", "run"),
        ),
    ),
    Side("job.nccl.log", "nccl_logs/nccl_vm_1059.log", (("import", "job.nccl.log", "--into", "run", "--force"),)),
    Side("run/job.nccl.log", "nccl_logs/nccl_vm_1060.log"),
    Side("run/rank00001.pt.trace.json.gz", "gloo-linear/rank00001.pt.trace.json.gz"),
    Side(
        "run/window1/rank00000.pt.trace.json.gz",
        "gloo-linear/rank00000.pt.trace.json.gz",
        (("report", "run"), ("report", "run/window1", "--json", "-"), ("compare", "run", "run/window1")),
    ),
    Side("run/window1", "side_files/README.md", (("report", "run", "--json", "-"), ("report", "run/window1"))),
    Side("run/.stepscope/rank00000.pt.trace.json.gz.columns", "gloo-linear/run.json"),
    Side("run/investigation.json", "side_files/investigation.json", (("investigate", "run"),)),
    Side(
        "run/investigation.txt",
        "side_files/README.md",
        (("investigate", "run"), ("investigate", "run", "--fixed", "run")),
    ),
    Side("run/calibration.json", "side_files/calibration.json", (("report", "run", "--html", "out.html"),)),
    Side(
        "calibration.json",
        "side_files/calibration.json",
        (
            (*_COLLECTIVE, "--calibration", "calibration.json"),
            ("predict", "scale", "run", "--world-size", "4", "--calibration", "calibration.json", "--json", "-"),
            (*_STRATEGY, *_SMALL, "--calibration", "calibration.json"),
            ("report", "run", "--html", "out.html", "--calibration", "calibration.json"),
        ),
    ),
    Side(
        "times.csv",
        "nccl_collectives/collectives_w4_half.csv",
        (("calibrate", "--from-csv", "times.csv", "--out", "out.json", "--plot", "out.svg"),),
    ),
    Side(
        "all_reduce.txt",
        "side_files/all_reduce_perf.txt",
        (("calibrate", "--from-nccl-tests", "all_reduce.txt", "--out", "out.json"),),
    ),
    Side(
        "nccl.json",
        "side_files/nccl_tests.json",
        (("calibrate", "--from-nccl-tests", "nccl.json", "--out", "out.json", "--json", "-"),),
    ),
    Side("times.json", "side_files/times.json", (("calibrate", "--from-bench", "times.json", "--out", "out.json"),)),
    Side(
        "config.json",
        "side_files/config.json",
        (
            ("predict", "flops", "--config", "config.json", "--seq-len", "128", "--json", "-"),
            ("predict", "memory", "--config", "config.json", "--seq-len", "128", "--strategy", "zero3", "--data", "4"),
            (*_STRATEGY, "--config", "config.json"),
        ),
    ),
    Side(
        "chips.toml",
        "side_files/chips.toml",
        (
            ("report", "run", "--hardware", "chips.toml", "--json", "-"),
            ("predict", "memory", *_SMALL, "--seq-len", "128", "--hardware", "chips.toml", "--device", "Own chip"),
        ),
    ),
    Side("bench.toml", "side_files/bench.toml", (("bench", "ddp", "--config", "bench.toml"),)),
    Side("bench.yaml", "side_files/bench.yaml", (("bench", "collectives", "--config", "bench.yaml"),)),
    Side("bench.yaml", "side_files/bench.yaml", (("bench", "precision", "--config", "bench.yaml"),)),
    Side(
        "a/results.json",
        "side_files/results.json",
        (("compare", "a", "b", "--json", "-"), ("compare", "a", "b", "--fail-on", "step_ms>5%")),
    ),
)
_YAML_BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
_CSV = "op,world_size,bytes,median_us\n"
_WHOLE = (
    *("", " ", "\x00", "\xff\xfe{\x00}\x00", "\xef\xbb\xbf{}", "9" * 5000, "\n" * 100_000, "x," * 100_000),
    *("null", "5", "[]", "{}", '""', "NaN", "1e999", "{"),
    *("[" * 100_000, '{"a":' * 100_000, "- " * 20_000, "a: [" * 5_000, "[a" * 5_000, "? " * 3_000),
    *(f"{'9' * 900_000} coll channels", "NCCL version " * 50_000, "via a/b " * 100_000, "NCCL WARN " + "x" * 900_000),
    *("a = " + "[" * 5_000, "a." * 5_000 + "b = 1", _YAML_BOMB, "&a [*a]", "a: *a"),
    "!!python/object/apply:os.system ['touch fuzzed']",
    *(
        f"{_CSV}all_reduce,2,1e400,1\n",
        f"{_CSV}all_reduce,2\n",
        f"{_CSV}all_reduce,2,{2**64},1e-300\nreduce,2,8,1e300\n",
    ),
)
_NODES = (
    *(node("fifo"), node("device", 5), node("device", 3), node("device", 7), node("folder"), node("unreadable")),
    *(node("sparse", 1 << 20), node("sparse", 60 << 30), node("link", "/dev/zero"), node("link", "missing")),
    *(node("link", "."), node("link", "/etc/passwd"), node("link", "fifo")),
)
_TOKEN = re.compile(rb"[\w.+-]+")


def side_files(rng: Random) -> Iterator[Case]:
    """Yield commands with one hostile side file."""
    while True:
        side = rng.choice(SIDES)
        recipe, what = _hostile(rng, side)
        argv = rng.choice(side.commands) if side.commands else any_command(rng, "run")
        files: dict[str, Recipe] = run_files()
        if side.place.startswith("run/") and rng.random() < 0.2:  # a run that was only timed
            files = {name: made for name, made in files.items() if "trace" not in name}
            argv = argv if side.commands else any_command(rng, "run", of=("report", "health", "compare"))
        if side.place.startswith("a/"):
            files = {"b/results.json": seed(side.seed)}
        if recipe.get("value") == "fifo":
            files[f"{side.place.rpartition('/')[0]}/fifo".lstrip("/")] = node("fifo")
        files[side.place] = recipe
        yield Case(argv, files, kind="side files", what=f"{side.place}: {what}", outputs=(*OUTPUTS, "out.svg"))


def _hostile(rng: Random, side: Side) -> tuple[Recipe, str]:
    if side.place.endswith(".columns") and rng.random() < 0.8:
        forgery = any_forgery(rng)
        return node("forged_cache", forgery), f"forged {forgery}"
    change = rng.random()
    if change < 0.12:
        chosen = rng.choice(_NODES)
        return chosen, f"{chosen['node']} {chosen.get('value', '')}"
    if change < 0.25:
        content = rng.choice(_WHOLE)
        return text(content), f"holds {content[:20]!r}"
    edits, what = _edits(rng, side.seed)
    packed = [["gzip", 1]] if side.place.endswith(".gz") else []
    return seed(side.seed, *edits, *packed), what


def _edits(rng: Random, name: str) -> tuple[list[list[Any]], str]:
    """Return a change of one value, or damage."""
    data = seed_text(name)
    value = rng.choice(VALUES)
    if rng.random() < 0.2:
        at = rng.randrange(len(data))
        length = rng.choice((1, 5, 50, 500))
        edit = rng.choice(
            (["keep", 0, at], ["copy", at, at + length, at], ["replace", at, at + length, ""], ["times", 3])
        )
        return [edit], f"{edit[0]} at {at}"
    if name.endswith(".json"):
        path = rng.choice(json_paths(seed_json(name)))
        return [["set", path, value]], f"{'.'.join(map(str, path))} = {value[:40]}"
    if name.endswith(".jsonl"):
        lines = data.rstrip().split(b"\n")
        number = rng.randrange(len(lines))
        path = rng.choice(json_paths(json.loads(lines[number])))
        return [["set_line", number, path, value]], f"line {number}, {'.'.join(map(str, path))} = {value[:40]}"
    start, end = rng.choice([found.span() for found in _TOKEN.finditer(data)])
    word = rng.choice((*VALUES, *WORDS)).encode("utf-8", "surrogatepass").decode("latin-1")
    return [["replace", start, end, word]], f"{data[start:end].decode(errors='replace')} -> {word[:40]!r}"
