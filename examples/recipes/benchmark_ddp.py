"""Data-parallel implementations side by side on two ranks: the same gradients, step times, what was hidden.

Run it:   python examples/recipes/benchmark_ddp.py OUT
"""

import json
import sys
from pathlib import Path

from stepscope.cli.main import main as stepscope

SIZE = ["--d-model", "32", "--num-layers", "1", "--num-heads", "2", "--seq-len", "16", "--vocab-size", "64"]


def main(out: Path) -> None:
    short = ["--batch-size", "2", "--num-epochs", "4", "--warmup-epochs", "2", "--runs", "2", "--no-trace"]
    names = ["--implementations", "ddp,ddp_individual,ddp_bucketed,pytorch_ddp"]
    where = ["--world-size", "2", "--threads", "1", "--out", str(out / "bench"), "--json", str(out / "bench.json")]
    assert stepscope(["bench", "ddp", *names, *SIZE, *short, *where]) == 0
    found = json.loads((out / "bench.json").read_text())
    print([series["name"] for series in found["series"]])
    assert len(found["series"]) == 4


if __name__ == "__main__":
    main(Path(sys.argv[1]))
