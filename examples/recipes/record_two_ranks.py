"""An unmodified DDP script on two ranks: recorded, checked, its late rank looked for, followed in TensorBoard.

Run it:   python examples/recipes/record_two_ranks.py OUT
"""

import json
import sys
from pathlib import Path

from stepscope.cli.main import main as stepscope

SCRIPT = Path(__file__).parent.parent / "train_ddp.py"


def main(out: Path) -> None:
    run = str(out / "run")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    job = [*torchrun, str(SCRIPT), "--steps", "16", "--width", "64"]
    assert stepscope(["record", "--out", run, "--steps", "5:8", "--shapes", "--", *job]) == 0
    assert stepscope(["report", run, "--json", str(out / "report.json"), "--html", str(out / "report.html")]) == 0
    report = json.loads((out / "report.json").read_text())
    print(report["run"]["strategy"], report["verdict"], [c["op"] for c in report["collectives"]])
    assert report["run"]["num_ranks"] == 2 and report["run"]["num_steps"] == 3


if __name__ == "__main__":
    main(Path(sys.argv[1]))
