"""Which runs of a history is one run held against? The last ones of its configuration that came before it."""

from pathlib import Path

from stepscope.compare.history.folder import run_folders
from stepscope.compare.history.row import identity_of
from stepscope.contract.run_folder import RUN_JSON, json_object_in
from stepscope.errors import InputError
from stepscope.run.sources import holds_traces

MAX_RUNS = 10


def runs_before(run: Path, folder: Path) -> list[Path]:
    """Return up to ten runs of the same command, model, ranks and device in a folder, the newest last.

    Runs without traces cannot be compared part by part and are left out; so are the run itself and newer ones.
    """
    own = identity_of(json_object_in(run / RUN_JSON))
    alike = []
    for one in run_folders(folder):
        found = identity_of(json_object_in(one / RUN_JSON))
        is_before = not own.created or not found.created or found.created < own.created
        if one.resolve() != run.resolve() and found.config == own.config and is_before and holds_traces(one):
            alike.append((found.created or "", str(one), one))
    if not alike:
        raise InputError(
            f"no earlier run with traces of the same command, model, ranks and device as {run} in {folder}; "
            "stepscope history --by config lists what is there"
        )
    return [one for *_, one in sorted(alike)[-MAX_RUNS:]]
