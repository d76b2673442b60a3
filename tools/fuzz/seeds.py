"""The honest files that cases begin with, and the commands that read each kind."""

import gzip
import json
from functools import cache
from random import Random
from typing import Any

from tools.fuzz.case import SEEDS, Recipe, seed

TRACES = (
    *(f"layouts/{name}.json.gz" for name in ("old-kineto-a100", "indent-2-h100", "indent-4-b200", "rocm-mi300")),
    "layouts/compact-alltoall.json.gz",
    "gloo-linear/rank00000.pt.trace.json.gz",
    "dlrm-8ranks/worker0.pt.trace.json.gz",
)
"""small ones of every writer: thousands of copies can be tried in a minute"""
LARGER_TRACES = ("gloo-mesh/rank00000.pt.trace.json.gz", "h200-hsdp/rank0.json.gz", "gloo-ddp/rank0.json.gz")
RUN = "gloo-linear"

_COMMANDS = (
    (40, ("report", "RUN", "--json", "-")),
    (20, ("report", "RUN")),
    (6, ("report", "RUN", "--html", "out.html")),
    (6, ("health", "RUN", "--guides")),
    (3, ("history", "RUN", "--no-cache", "--json", "-")),
    (2, ("history", "RUN", "--no-cache", "--by", "host")),
    (3, ("health", "RUN", "--fail-on", "data_loading_pct>30", "--json", "-")),
    (4, ("investigate", "RUN")),
    (2, ("investigate", "RUN", "--fixed", "RUN", "--json", "-")),
    (4, ("whatif", "RUN", "--set", "straggler=off", "network=2x", "--json", "-")),
    (2, ("whatif", "RUN", "--set", "overlap=perfect", "bucket_mb=25", "data=instant", "kernels=fused")),
    (3, ("code", "RUN", "--json", "-")),
    (2, ("code", "RUN", "--modules")),
    (3, ("export", "RUN", "--perfetto", "out.pftrace")),
    (1, ("export", "RUN", "--perfetto", "out.json")),
    (1, ("export", "RUN", "--perfetto", "out.json.gz", "--steps", "0:99", "--ranks", "0")),
    (3, ("export", "RUN", "--csv", "tables")),
    (1, ("export", "RUN", "--parquet", "tables")),
    (2, ("export", "RUN", "--tensorboard", "tables")),
    (2, ("sql", "RUN", "SELECT * FROM events")),
    (2, ("sql", "RUN", "SELECT * FROM collectives, steps", "--json", "-")),
    (4, ("predict", "scale", "RUN", "--world-size", "64", "--link", "50:5")),
    (2, ("calibrate", "--from-run", "RUN", "--out", "calibration.json")),
    (2, ("compare", "RUN", "RUN", "--json", "-")),
    (1, ("compare", "RUN", "RUN", "--html", "out.html")),
    (2, ("compare", "RUN", "RUN", "--fail-on", "step_ms>5%")),
    (2, ("view", "RUN", "--no-browser", "--port", "0")),
)
OUTPUTS = ("out.html", "out.pftrace", "out.json", "tables", "calibration.json", "run/investigation.json")


def any_command(rng: Random, run: str, *, of: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return a command that reads a run; one of the commands named in `of`, where any are."""
    chosen = [(weight, argv) for weight, argv in _COMMANDS if not of or argv[0] in of]
    (argv,) = rng.choices([argv for _, argv in chosen], [weight for weight, _ in chosen])
    return tuple(run if word == "RUN" else word for word in argv)


def run_files(folder: str = "run", name: str = RUN) -> dict[str, Recipe]:
    """Return the files of an honest run folder."""
    return {f"{folder}/{p.name}": seed(f"{name}/{p.name}") for p in sorted((SEEDS / name).glob("r*n*"))}


@cache
def seed_text(name: str) -> bytes:
    """Return the plain content of a seed."""
    data = (SEEDS / name).read_bytes()
    return gzip.decompress(data) if name.endswith(".gz") else data


@cache
def seed_json(name: str) -> Any:
    """Return the parsed content of a JSON seed."""
    return json.loads(seed_text(name))
