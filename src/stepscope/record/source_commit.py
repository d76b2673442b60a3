"""Which commit does the training script run at? Read from the repository's own files: no process is started in the job.

What the CI system says comes first; else `.git` of the folder the script lies in, or of one around it. Changes that
were not committed are not looked for: that would take a walk through all files.
"""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from stepscope.side_file import read_side_text

_VARIABLES = ("GITHUB_SHA", "CI_COMMIT_SHA", "GIT_COMMIT", "BUILDKITE_COMMIT", "CIRCLE_SHA1")
_COMMIT = re.compile(r"^[0-9a-f]{40}(?:[0-9a-f]{24})?$")
_REF = re.compile(r"^ref: (refs/[\w./-]{1,200})$")
_MAX_FOLDERS = 40
_MAX_BYTES = 1 << 20


def source_commit(environment: Mapping[str, str] = os.environ, script: str | None = None) -> str | None:
    """Return the commit of the script's repository, None where there is none."""
    said = [environment[name].strip().lower() for name in _VARIABLES if name in environment]
    known = next((one for one in said if _COMMIT.match(one)), None)
    if known is not None:
        return known
    try:
        start = Path(script if script is not None else sys.argv[0]).resolve().parent
        for folder in [start, *start.parents][:_MAX_FOLDERS]:
            if (folder / ".git").exists():
                return _head(_git_folder(folder / ".git"))
    except (OSError, ValueError, IndexError):
        return None
    return None


def _git_folder(path: Path) -> Path:
    """Return where a repository keeps its files: `.git` itself, or what it names in a worktree or submodule."""
    if path.is_dir():
        return path
    said = _text(path).partition("gitdir: ")[2].strip()
    return (path.parent / said).resolve()


def _head(git: Path) -> str | None:
    head = _text(git / "HEAD").strip()
    ref = _REF.match(head)
    if ref is None:
        return head if _COMMIT.match(head) else None
    common = git / "commondir"  # a worktree has its own HEAD and shares its branches
    roots = [git, *([(git / _text(common).strip()).resolve()] if common.is_file() else [])]
    return next((found for root in roots if (found := _branch(root, ref[1])) is not None), None)


def _branch(root: Path, name: str) -> str | None:
    if ".." in name:
        return None
    if (root / name).is_file():
        found = _text(root / name).strip()
        return found if _COMMIT.match(found) else None
    packed = _text(root / "packed-refs").splitlines() if (root / "packed-refs").is_file() else []
    commits = (line.split(" ", 1)[0] for line in packed if line.endswith(f" {name}"))
    return next((one for one in commits if _COMMIT.match(one)), None)


def _text(path: Path) -> str:
    return read_side_text(path, max_bytes=_MAX_BYTES)
