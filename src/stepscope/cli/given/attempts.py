"""Which folder does a job write to now? An elastic restart is a run of its own, beside the first one."""

import re
from pathlib import Path

from stepscope.contract.run_folder import json_object_in
from stepscope.errors import InputError
from stepscope.record.helper.claim import CLAIM, folders_of_launch

_NUMBERED = re.compile(r"-\d{1,5}$")


def newest_attempt(given: str | Path) -> Path:
    """Return the newest run folder of the launch that made this one: `run-3` for `run` after two restarts.

    The folder itself where it has no launch, or no later attempt; an `InputError` where there is no folder.
    """
    folder = Path(given)
    if not folder.is_dir():
        raise InputError(f"there is no run folder at {folder}; give the one that stepscope record named")
    launch = json_object_in(folder / CLAIM).get("launch_id")
    if not isinstance(launch, str):
        return folder
    first = folder.with_name(_NUMBERED.sub("", folder.name))
    found = [*folders_of_launch(folder, launch), *folders_of_launch(first, launch)]
    newest = max(found, key=lambda attempt: (_number(attempt, first), attempt.name), default=folder)
    return folder if newest.resolve() == folder.resolve() else folder.with_name(newest.name)


def _number(attempt: Path, first: Path) -> int:
    rest = attempt.name.removeprefix(first.name).removeprefix("-")
    return int(rest) if rest.isdigit() else 1
