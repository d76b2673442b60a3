"""Hostile values, honest files that cases begin with, and the commands that read each kind."""

import gzip
import json
from functools import cache
from random import Random
from typing import Any

from tools.fuzz.case import SEEDS, Recipe, seed

ESC = "\x1b]0;fuzzed\x07\x1b[31m"
MARKUP = "[bold]fuzzmark[/bold][/nope]"
SCRIPT = "</script><script>fuzzed()</script><img src=x onerror=fuzzed()>"

NUMBERS = (
    *("0", "1", "-1", "0.5", "-0.0", "2147483648", "4294967296", "9007199254740993"),
    *(str(2**62), str(2**63 - 1), str(-(2**63)), str(2**63), str(2**64), "1" + "0" * 400, "-" + "9" * 400, "9" * 5000),
    *("1e18", "1e19", "1e308", "1e-320", "1e999", "-1e999", "NaN", "Infinity", "-Infinity", "1" * 30 + ".5"),
)
_STRINGS = (
    *("", "x", "12", "-1", "1e999", "nan", "\u0663", "[1, 2]", "[[1], 5]", "[" * 3000, "2" * 400, "%s%n{}", "\x00"),
    *(ESC, MARKUP, SCRIPT, "a\nb\rc", "\u202eabc", "\U0001f4a9", "A" * 100_000, "../../etc/passwd", "//etc/passwd"),
    *("ProfilerStep#99999999999999999999", "ProfilerStep#-1", "ncclDevKernel_AllReduce", "nccl:all_reduce"),
)
TEXTS = (*map(json.dumps, _STRINGS), '"\\ud800"', '"\\u0000"', '"\x01"')
OTHERS = (
    *("null", "true", "false", "[]", "{}", "[5]", "[null]", "[[]]", '{"a": 1}', '[{"rank": -1}]', "[1e999, NaN]"),
    *("[[[[4, 4], 5], null], true]", "[" * 500 + "]" * 500, '{"a":' * 500 + "1" + "}" * 500, "[" * 5000 + "]" * 5000),
    *("[" + ",".join(["0"] * 50_000) + "]", "{" + ",".join(f'"k{i}": {i}' for i in range(2000)) + "}"),
    *("", "undefined", "{", "]", ","),
)
VALUES = (*NUMBERS, *TEXTS, *OTHERS)

_PLAIN_WORDS = """
- -- 0 -1 1 2 0.5 -0 +5 1_0 0x10 1e400 -1e400 1e308 1e-320 nan inf -inf x %s * [ **/* / . .. = a=b > all a,b ,
10:5 5:10 : 1: :1 -1:3 1:2:3 0,1 0- 0-9999999999 3-1 1:1 50:5 inf:5 50:-1 0:0 nan:nan 25MB 1e400MB -1GB NaNGB
step_ms>5% step_ms>nan step_ms>1e999% network=0x network=nanx network=1e999x bucket_mb=0 bucket_mb=1e-300
auto loader optimizer Adam Adam#1 Adam#-1 Adam#\xb2 #1 Adam#99999999999
microbatches=99999999999 straggler=99 kernel:x=2x missing missing/folder/file /dev/null/x http://[ file:///etc/passwd
"""
WORDS = (
    *_PLAIN_WORDS.split(),
    *(str(2**31), str(2**63 - 1), str(2**63), str(2**64), "9" * 400, "9" * 5000, "99999999"),
    *("", " ", "a\nb", "\udcff", "\U0001f4a9", "\u0663", "\xb2", "\xb2:5", ESC, MARKUP, SCRIPT),
    *("A" * 300, "A" * 70_000, "SELECT 1", "SELECT", "SELECT * FROM events", "SELECT repeat('x', 1000000000)"),
)


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
    (3, ("job", "RUN", "--json", "-")),
    (3, ("health", "RUN", "--fail-on", "data_loading_pct>30", "--json", "-")),
    (4, ("investigate", "RUN", "--fixed", "RUN")),
    (2, ("investigate", "RUN", "--json", "-")),
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
    (1, ("sql", "RUN", "SELECT list(range) FROM range(1000000000)", "--json", "-")),
    (1, ("sql", "RUN", "SELECT repeat('x', 1000000) FROM range(100000)", "--csv", "out.csv")),
    (1, ("sql", "RUN", "SELECT * FROM test_all_types()")),
    (2, ("sql", "RUN", "SELECT * FROM collectives, steps", "--json", "-")),
    (4, ("predict", "scale", "RUN", "--world-size", "64", "--link", "50:5")),
    (2, ("calibrate", "--from-run", "RUN", "--out", "calibration.json")),
    (2, ("compare", "RUN", "RUN", "--json", "-")),
    (1, ("compare", "RUN", "RUN", "--html", "out.html")),
    (2, ("compare", "RUN", "RUN", "--fail-on", "step_ms>5%")),
    (2, ("view", "RUN", "--no-browser", "--port", "0")),
)
OUTPUTS = ("out.html", "out.csv", "out.pftrace", "out.json", "tables", "calibration.json")


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
