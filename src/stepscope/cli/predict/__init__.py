"""`stepscope predict`: one file per prediction, each from formulas, a calibration or a recorded run.

`model` is what those about a model share, `simulated` the step without data of `memory --simulate`.
"""

import argparse
from importlib import import_module

from stepscope.cli.output import check_outputs


def run(args: argparse.Namespace) -> int:
    """Return the exit code of the prediction that was asked for."""
    check_outputs(args.json, args.html, force=args.force)
    code: int = import_module(f"stepscope.cli.predict.{args.what}").run(args)
    return code
