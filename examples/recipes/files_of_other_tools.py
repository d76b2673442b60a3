"""Files of other tools read by content: NCCL's log beside a run, a job that hung, a snapshot of CUDA's memory.

Run it:   python examples/recipes/files_of_other_tools.py OUT RUN NCCL_LOG DUMPS SNAPSHOT
"""

import shutil
import sys
from pathlib import Path

from stepscope.cli.main import main as stepscope


def main(out: Path, run: str, nccl_log: str, dumps: str, snapshot: str) -> None:
    mine = str(shutil.copytree(run, out / "run"))
    for words in (
        ["import", nccl_log, "--into", mine, "--rank", "0"],
        ["report", mine, "--json", str(out / "report.json")],
        ["hang", dumps],
        ["memory", snapshot],
    ):
        print("$ stepscope", *words)
        code = stepscope(words)
        assert code == 0, f"{words[0]}: exit code {code}"


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
