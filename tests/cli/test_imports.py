"""A command imports what it needs and little else. Counted, not timed: budgets to lower, not to raise."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parent.parent / "data" / "h200-fsdp2"
CODE = """
import sys
before = set(sys.modules)
from stepscope.cli.main import main
code = main(sys.argv[1:])
import json
print(json.dumps([code, sorted(set(sys.modules) - before)]), file=sys.stderr)
"""
TERMINAL, PAGE = "rich", "stepscope.report.html"
OPENSSL = "_hashlib"
MASKED = "numpy.ma"
"""which `np.unique`, `np.median` and `np.quantile` import before they do anything"""


def imported_by(*words: str) -> set[str]:
    command = [sys.executable, "-c", CODE, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    code, names = json.loads(done.stderr.splitlines()[-1])
    assert code == 0
    return set(names)


def test_query_over_what_was_recorded_needs_no_analysis() -> None:
    pytest.importorskip("duckdb")
    imported = imported_by("sql", str(RUN), "SELECT count(*) FROM events")
    assert not {"pandas", "stepscope.analyze.account", "stepscope.diagnose.findings"} & imported


@pytest.mark.parametrize(
    ("words", "most_own", "most", "without"),
    [
        (["report", "{run}", "--json", "-"], 331, 557, {TERMINAL, PAGE, MASKED, OPENSSL}),
        (["report", "{run}"], 342, 618, {PAGE, MASKED, OPENSSL}),
        (["whatif", "{run}", "--set", "overlap=perfect", "--json", "-"], 323, 598, {PAGE, MASKED, OPENSSL}),
    ],
)
def test_command_imports_what_it_needs(words: list[str], most_own: int, most: int, without: set[str]) -> None:
    imported = imported_by(*(word.format(run=RUN) for word in words))
    assert not without & imported
    own = [name for name in imported if name.startswith("stepscope")]
    assert len(own) <= most_own, f"{len(own)} modules of our own"
    assert len(imported) <= most, f"{len(imported)} modules"
