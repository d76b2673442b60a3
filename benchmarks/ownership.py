"""How much of the step has an owner? Seven kinds of jobs (`gpt_job.py`), recorded, with their owned shares.

    python benchmarks/ownership.py [--kinds nanogpt,fsdp2] [--work FOLDER] [--steps 20:26]

| column | share of |
|---|---|
| device | the device's time, communication included, that has a line of the user's |
| host | the host's time that has one, waiting included |
| finer | the host's time that has a line below those around the whole step |
| module | the device's time (the host's, without a device) that has a module |
| matched | operators of the recorded steps that have a counterpart in the step with frames |

A kind whose library is missing is left out with a line. Without a GPU the device column is empty.
"""

import argparse
import importlib.util
import sys
import tempfile
import traceback
from pathlib import Path

import numpy as np
from common import HERE, python, recorded, row, run, table

RANKS = {"fsdp2": 2, "pipeline": 2}
KINDS = ("nanogpt", "fsdp2", "pipeline", "compiled", "checkpointing", "lightning", "transformers")
NEEDS = ("lightning", "transformers")
MIN_DEVICE, MIN_HOST = 0.95, 0.90
LARGE = ("--width", "768", "--heads", "12", "--seq", "512")


def record(kind: str, folder: Path, steps: str) -> None:
    words = (HERE / "gpt_job.py", kind, "--steps", int(steps.split(":")[1]) + 14)
    job = python(*words, *(LARGE if on_gpu() else ()), ranks=RANKS.get(kind, 1))
    run(recorded(folder, job, "--steps", steps), TOKENIZERS_PARALLELISM="false")


def on_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def shares(folder: Path) -> dict[str, float | None]:
    """Return the owned shares of a recorded run, by column."""
    import stepscope
    from stepscope.analyze.owner_places import whole_step_lines

    account = stepscope.load(folder).account
    pairs = zip(account.ownership, account.owner_sums, strict=True)
    known = [(owned, sums) for owned, sums in pairs if owned is not None and sums is not None]
    if len(known) < len(account.run.ranks):
        raise RuntimeError("a rank has no owners: " + "; ".join(account.warnings))
    total = dict.fromkeys(("device", "host", "device_line", "host_line", "finer", "device_module", "host_module"), 0.0)
    matched = []
    for owned, sums in known:
        around = whole_step_lines(owned)
        lines = [
            {(f.file, f.line) for f in (owned.frames[i] for i in s) if f.is_user}
            for s in map(owned.stacks.__getitem__, range(len(owned.stacks)))
        ]
        has_line = np.array([*(bool(x) for x in lines), False])[sums.owner.stack]
        finer = np.array([*(bool(x - around) for x in lines), False])[sums.owner.stack]
        in_module = np.array([*(bool(m) for m in owned.modules), False])[sums.owner.module]
        host, device = sums.amount[:, 0] + sums.amount[:, 1], sums.amount[:, 2] + sums.amount[:, 3]
        device = device * owned.rank.has_device
        amounts = {
            "device": device, "host": host, "device_line": device[has_line], "host_line": host[has_line],
            "finer": host[finer], "device_module": device[in_module], "host_module": host[in_module],
        }  # fmt: skip
        for name, amount in amounts.items():
            total[name] += float(amount.sum())
        matched.append(owned.matched_share if owned.matched_share is not None else 1.0)
    on_device = total["device"] > 0
    return {
        "device": total["device_line"] / total["device"] if on_device else None,
        "host": total["host_line"] / total["host"],
        "finer": total["finer"] / total["host"],
        "module": total["device_module"] / total["device"] if on_device else total["host_module"] / total["host"],
        "matched": min(matched),
    }


def main() -> int:
    """Print the table; return 1 if a kind fails or is below the minimum."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--work", type=Path)
    parser.add_argument("--steps", default="20:26")
    args = parser.parse_args()
    work, worst = args.work or Path(tempfile.mkdtemp()), 0
    print(table(("kind", "device %", "host %", "finer %", "module %", "matched %", "enough"), ()), flush=True)
    for kind in args.kinds.split(","):
        if kind in NEEDS and importlib.util.find_spec(kind) is None:
            print(f"{kind}: left out, {kind} is not installed", flush=True)
            continue
        try:
            if not (work / kind).exists():
                record(kind, work / kind, args.steps)
            found = shares(work / kind)
        except Exception:  # noqa: BLE001 - the other kinds are still worth a row
            print(f"{kind}: failed\n{traceback.format_exc(limit=1)}", flush=True)
            worst = 1
            continue
        enough = (found["device"] or 1.0) >= MIN_DEVICE and (found["host"] or 0.0) >= MIN_HOST
        worst |= not enough
        values = ["" if x is None else f"{100 * x:.1f}" for x in found.values()]
        print(row([kind, *values, "yes" if enough else "NO"]), flush=True)
    return int(worst)


if __name__ == "__main__":
    sys.exit(main())
