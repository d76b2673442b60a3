"""What a job should cost before it runs: collectives, FLOPs, memory, strategy, from a model's shape and a calibration.

Run it:   python examples/recipes/plan_a_job.py OUT
"""

import sys
from pathlib import Path

from stepscope.cli.main import main as stepscope

MODEL = ["--layers", "12", "--d-model", "768", "--heads", "12", "--vocab", "32000", "--seq-len", "1024"]


def times(alpha_us: float, gb_per_s: float) -> str:
    """Return measured times of an all-reduce on 2 to 8 ranks, as a benchmark would leave them."""
    rows = ["op,world_size,bytes,median_us"]
    for ranks in (2, 4, 8):
        for power in range(10, 28, 2):
            on_the_wire = 2 * (ranks - 1) / ranks * 2**power
            rows.append(f"all_reduce,{ranks},{2**power},{alpha_us * ranks + on_the_wire / gb_per_s / 1e3:.2f}")
    return "\n".join(rows) + "\n"


def main(out: Path) -> None:
    (out / "times.csv").write_text(times(10.0, 20.0))
    calibration = str(out / "calibration.json")
    for words in (
        ["calibrate", "--from-csv", str(out / "times.csv"), "--out", calibration],
        [
            "predict",
            "collective",
            "--calibration",
            calibration,
            "--op",
            "all_reduce",
            "--bytes",
            "25MB",
            "--world-size",
            "8",
        ],
        ["predict", "flops", *MODEL],
        ["predict", "memory", *MODEL, "--strategy", "fsdp", "--data", "8", "--device", "H200"],
        ["predict", "strategy", *MODEL, "--sequences", "64", "--device", "H200", "--world-size", "8"],
    ):
        print("$ stepscope", *words)
        code = stepscope(words)
        assert code == 0, f"{words[:2]}: exit code {code}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
