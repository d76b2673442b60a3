"""A command imports what it needs and little else. Counted, not timed: budgets to lower, not to raise."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stepscope.cli.main import COMMANDS
from stepscope.lab.cli.bench_arguments import WHAT as BENCHMARKS
from stepscope.lab.cli.predict import WHAT as PREDICTIONS

TRACE = Path(__file__).parent.parent / "data" / "h200-fsdp2" / "rank0.json.gz"
CODE = """
import sys
before = set(sys.modules)
from stepscope.cli.main import main
code = 0
for words in " ".join(sys.argv[1:]).split(";"):
    try:
        code = code or main(words.split() if ";" in sys.argv else sys.argv[1:])
    except SystemExit as ended:
        code = code or ended.code
import json
print(json.dumps([code, sorted(set(sys.modules) - before)]), file=sys.stderr)
"""
HEAVY = {"numpy", "wasmtime", "zlib_ng", "zstandard", "pyarrow", "duckdb", "torch", "mcp", "anyio"}
HEAVY_ROOMS = {"trace", "run", "analyze", "diagnose", "document", "compare", "analysis"}
# the names of tables
DECLARATIONS = {"stepscope.document", "stepscope.document.rows"}
TERMINAL, PAGE = "stepscope.report.summary", "stepscope.report.html"
OPENSSL = "_hashlib"
MASKED = "numpy.ma"
"""which `np.unique`, `np.median` and `np.quantile` import before they do anything"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of one trace, without anything that has to be looked into for what it is."""
    return Path(shutil.copy(TRACE, tmp_path_factory.mktemp("run"))).parent


def imported_by(*words: str, first: str = "") -> set[str]:
    command = [sys.executable, "-c", first + CODE, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    code, names = json.loads(done.stderr.splitlines()[-1])
    assert code == 0
    return set(names)


@pytest.mark.slow
def test_query_over_what_was_recorded_needs_no_analysis(run: Path) -> None:
    pytest.importorskip("duckdb")
    imported = imported_by("sql", str(run), "SELECT count(*) FROM events")
    assert not {"pandas", "stepscope.analyze.account", "stepscope.diagnose.findings"} & imported


@pytest.mark.slow
def test_query_of_a_trace_that_was_read_before_runs_no_scanner(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    shutil.copy(TRACE, tmp_path)
    words = ("sql", str(tmp_path), "SELECT count(*) FROM collectives")
    also_small = "import stepscope.trace.cache as cache; cache.MIN_RAW_BYTES = 0"
    assert "wasmtime" in imported_by(*words, first=also_small)
    assert "wasmtime" not in imported_by(*words, first=also_small)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "most_own", "most", "without"),
    [
        (["report", "{run}", "--json", "-"], 87, 380, {TERMINAL, PAGE, MASKED, OPENSSL}),
        (["report", "{run}"], 91, 440, {PAGE, MASKED, OPENSSL}),
        (["whatif", "{run}", "--set", "network=2x", "--json", "-"], 87, 425, {PAGE, MASKED, OPENSSL}),
    ],
)
def test_command_imports_what_it_needs(run, words, most_own, most, without):
    imported = imported_by(*(word.format(run=run) for word in words))
    assert not without & imported
    own = [name for name in imported if name.startswith("stepscope")]
    assert len(own) <= most_own, f"{len(own)} modules of our own"
    assert len(imported) <= most, f"{len(imported)} modules"


def test_help_imports_little() -> None:
    """Help of all commands in one process; beyond a bare Python most are the standard library's."""
    benchmarks, predictions = (f"bench {what}" for what in BENCHMARKS), (f"predict {what}" for what in PREDICTIONS)
    each = [f"{command} --help" for command in ("", *COMMANDS, *benchmarks, *predictions)]
    imported = imported_by(*" ; ".join(each).split())
    assert not HEAVY & {name.partition(".")[0] for name in imported}
    ours = {name for name in imported if name.startswith("stepscope.")} - DECLARATIONS
    assert not HEAVY_ROOMS & {name.split(".")[1] for name in ours}
    assert len(imported_by("report", "--help")) <= 120
