"""Refresh what commands print on the pages of the docs.

    python tools/write_outputs.py [RUNS]

A block that begins with `$ stepscope COMMAND RUN ...` is written anew where the runs it names are in `tests/data`, in
the folder RUNS or in `MADE`, or where the command needs none. Where a block ends in `...`, so does the new one, after
as many lines. Commands that record or serve are left alone. A test compares the blocks of the runs in `tests/data` and
`MADE`.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from tests.compare.history.folders import nine_jobs  # noqa: E402

PAGES = sorted(
    p for p in (ROOT / "docs").rglob("*.md") if p.parent.name != "findings"
)  # `finding_examples.py` has those
DATA = [ROOT / "tests" / "data" / name for name in ("", "tutorial", "memory_snapshot")]
COMMANDS = ("report", "whatif", "compare", "health", "memory", "hang", "code", "history", "predict")
#: runs of known truth that are made for the page
MADE = {"jobs": nine_jobs}
#: commands that would leave a cache next to the runs
_CACHING = ("report", "whatif", "health", "code", "memory", "history")
_BLOCK = re.compile(r"    \$ stepscope (?P<args>[^\n]*)\n(?P<said>(?:    [^\n]*\n|\n(?=\n*    ))*)")


def main(runs: Path | None = None) -> int:
    """Return 0 when all pages are written."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        fresh = refreshed(text, runs)
        if fresh != text:
            page.write_text(fresh, encoding="utf-8")
            print(f"{page.relative_to(ROOT)}: new output")
    return 0


def refreshed(text: str, runs: Path | None = None) -> str:
    """Return a page with the blocks whose runs are there written anew."""
    return _BLOCK.sub(lambda block: _fresh(block, runs), text)


def _fresh(block: re.Match[str], runs: Path | None) -> str:
    words = block["args"].split(" ")
    known = [folder for folder in (*DATA, runs) if folder is not None]
    named = {word: place for word in words[1:] for folder in known if (place := folder / word).exists() and word}
    named |= {word: Path(word) for word in words[1:] if word in MADE}
    expected = 2 if words[0] == "compare" or "--fixed" in words else 0 if _needs_no_run(words) else 1
    if words[0] not in COMMANDS or len(named) < expected or "--json" in words:
        return block[0]
    said = block["said"].split("    $ ")[0]
    lines = _printed(block["args"], named)
    before = said.rstrip("\n").split("\n")
    if before[-1].strip() == "...":
        lines = [*lines[: max(len(before) - 1, 1)], "..."]
    body = "".join(f"    {line}".rstrip() + "\n" for line in lines)
    rest = block["said"][len(said) :]
    blank = "\n" if said.endswith("\n\n") else ""
    return f"    $ stepscope {block['args']}\n{body}{blank}{rest}"


def _needs_no_run(words: list[str]) -> bool:
    return words[0] == "predict" and words[1] != "scale"


def _printed(arguments: str, runs: dict[str, Path]) -> list[str]:
    environment = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1", "PYTHONPATH": str(ROOT / "src"), "PYTHONUTF8": "1"}
    command = shlex.split(arguments)
    plain = ["--no-cache"] if command[0] in _CACHING else []
    with tempfile.TemporaryDirectory() as folder:
        for name, place in runs.items():
            if name in MADE:
                MADE[name](Path(folder, name))
            else:
                Path(folder, name).symlink_to(place)
        words = [sys.executable, "-m", "stepscope", *command, *plain]
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    text = done.stdout + done.stderr if done.returncode == 2 else done.stdout
    return [line.rstrip() for line in text.rstrip("\n").split("\n")]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else None))
