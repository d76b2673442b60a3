"""The runs of a folder that holds several, each with its report; one that cannot be read says why."""

import argparse
from pathlib import Path

from stepscope.cli.given.run_arguments import account_from
from stepscope.diagnose.findings import diagnose
from stepscope.document.light import light_json
from stepscope.document.report import report_json
from stepscope.errors import InputError
from stepscope.report.runs import RunEntry, in_order
from stepscope.run.light import load_light
from stepscope.run.load import run_description
from stepscope.run.sources import has_steps_only


def run_entries(args: argparse.Namespace, folders: list[Path]) -> list[RunEntry]:
    """Return the runs with their reports, in the order in which they were made."""
    return in_order([_entry(args, folder) for folder in folders])


def _entry(args: argparse.Namespace, folder: Path) -> RunEntry:
    created = run_description(folder)[0].get("created")
    made = created if isinstance(created, str) else None
    try:
        if has_steps_only([folder]):
            return RunEntry(folder.name, made, light_json(load_light(folder)))
        account = account_from(args, [str(folder)])
        return RunEntry(folder.name, made, report_json(account, diagnose(account)))
    except InputError as error:
        return RunEntry(folder.name, made, None, str(error))
