"""What the arguments that all benchmarks share say: the plan's settings, and the folder for results."""

import argparse
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from stepscope.bench.session.results import RESULTS
from stepscope.cli.output import refuse_existing
from stepscope.contract.flops import WORKLOAD_DEFAULTS
from stepscope.errors import UsageError

PLOT = "results.svg"


def shared_settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return the workload and the method, as every plan holds them."""
    method = {name: getattr(args, name) for name in ("warmup_steps", "steps", "runs", "grad_accum")}
    return {"workload": workload_settings(args), **method}


def workload_settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return the description of the workload, as a plan holds it."""
    return {
        "name": args.workload,
        **{name: getattr(args, name) for name in WORKLOAD_DEFAULTS},
        "precision": args.precision,
        "seed": args.seed,
        "options": getattr(args, "workload_options", {}),
    }


def results_folder(args: argparse.Namespace) -> Path:
    """Return the folder for the results, after making sure that measuring is possible and nothing is overwritten."""
    if find_spec("torch") is None:
        raise UsageError("measuring needs torch, which is not installed here; install it")
    for path in (args.json, getattr(args, "plot", None), getattr(args, "html", None)):
        if path and path != "-":
            refuse_existing(Path(path), force=args.force)
    folder = Path(args.out)
    for name in (RESULTS, PLOT):
        refuse_existing(folder / name, force=True)  # what is no regular file is never overwritten
    if (folder / RESULTS).exists() and not args.force:
        raise UsageError(f"{folder / RESULTS} already exists; use --force or another --out")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--out {folder} is a file, not a folder; give another name")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise UsageError(f"--out {folder} cannot be made ({e.strerror}); give another folder") from e
    return folder
