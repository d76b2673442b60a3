"""How much of the step has an owner? Seven kinds of jobs are recorded; a table shows what share of each has a line.

    PYTHONPATH=src python benchmarks/ownership.py [--kinds nanogpt,fsdp2] [--work FOLDER] [--steps 20:26]

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
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve()
JOB = HERE.with_name("ownership_job.py")
SRC = HERE.parent.parent / "src"
RANKS = {"fsdp2": 2, "pipeline": 2}
KINDS = ("nanogpt", "fsdp2", "pipeline", "compiled", "checkpointing", "lightning", "transformers")
NEEDS = {"lightning": "lightning", "transformers": "transformers"}
MIN_DEVICE, MIN_HOST = 0.95, 0.90
LIMIT_S = 600


def record(kind: str, folder: Path, steps: str) -> str | None:
    """Record a kind into a folder; return why it failed, None where it did not."""
    words = [str(JOB), kind, str(int(steps.split(":")[1]) + 14)]
    if kind in RANKS:
        launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS[kind]}"]
        words = [*launch, *words]
    command = [sys.executable, "-m", "stepscope", "record", "--out", str(folder), "--steps", steps, "--"]
    path = os.pathsep.join([str(SRC), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path, "GLOO_SOCKET_IFNAME": "lo", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        [*command, sys.executable, *words], env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    return None if done.returncode == 0 else (done.stderr or done.stdout)[-1500:]


def shares(folder: Path) -> dict[str, float | None]:
    """Return the owned shares of a recorded run, by column."""
    import stepscope
    from stepscope.diagnose.where import whole_step_lines

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


def row(kind: str, found: dict[str, float | None]) -> str:
    """Return a line of the table."""
    values = " | ".join("" if x is None else f"{100 * x:.1f}" for x in found.values())
    enough = (found["device"] or 1.0) >= MIN_DEVICE and (found["host"] or 0.0) >= MIN_HOST
    return f"| {kind} | {values} | {'yes' if enough else 'NO'} |"


def main() -> int:
    """Print the table; return 1 where a kind failed or falls short."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--work", type=Path)
    parser.add_argument("--steps", default="20:26")
    args = parser.parse_args()
    work = args.work or Path(tempfile.mkdtemp())
    print(
        "| kind | device % | host % | finer % | module % | matched % | enough |\n|---|---|---|---|---|---|---|",
        flush=True,
    )
    worst = 0
    for kind in args.kinds.split(","):
        if kind in NEEDS and importlib.util.find_spec(NEEDS[kind]) is None:
            print(f"{kind}: left out, {NEEDS[kind]} is not installed", flush=True)
            continue
        try:
            folder = work / kind
            why = None if folder.exists() else record(kind, folder, args.steps)
            if why is not None:
                raise RuntimeError(why)
            text = row(kind, shares(folder))
            worst |= text.endswith("NO |")
        except Exception:  # noqa: BLE001 - the other kinds are still worth a row
            text, worst = f"{kind}: failed\n{traceback.format_exc(limit=1)}", 1
        print(text, flush=True)
    return int(worst)


if __name__ == "__main__":
    sys.exit(main())
