"""Help fits 80 columns, and is quick because it imports little: counted, not timed."""

import json
import os
import subprocess
import sys

import pytest

from stepscope.cli.bench_arguments import WHAT as BENCHMARKS
from stepscope.cli.main import COMMANDS
from stepscope.cli.predict import WHAT as PREDICTIONS

MAX_MODULES = 120
"""beyond those of a bare Python; most are the standard library's (argparse, dataclasses, pathlib)"""
HEAVY = {"numpy", "wasmtime", "zlib_ng", "zstandard", "rich", "pyarrow", "duckdb", "torch"}
HEAVY_ROOMS = {"trace", "run", "analyze", "diagnose", "document", "compare", "investigate", "analysis"}
CODE = """
import sys
before = set(sys.modules)
from stepscope.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit as ended:
    import json
    print(json.dumps([ended.code, sorted(set(sys.modules) - before)]), file=sys.stderr)
"""


@pytest.mark.parametrize(
    "command",
    [
        "",
        *COMMANDS,
        *(f"bench {what}" for what in BENCHMARKS),
        *(f"predict {what}" for what in PREDICTIONS),
    ],
)
def test_help_imports_little_and_fits_80_columns(command: str) -> None:
    words = [sys.executable, "-c", CODE, *command.split(), "--help"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "80"})
    assert max(map(len, done.stdout.splitlines())) <= 80
    code, imported = json.loads(done.stderr)
    assert code == 0
    assert done.stdout.startswith(f"usage: stepscope {command}".rstrip())
    assert not HEAVY & {name.partition(".")[0] for name in imported}
    assert not HEAVY_ROOMS & {name.split(".")[1] for name in imported if name.startswith("stepscope.")}
    assert len(imported) <= MAX_MODULES, f"{len(imported)}: {', '.join(imported)}"
