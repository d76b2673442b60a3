"""NVIDIA's own report files through NVIDIA's own programs, where they are installed.

    x.nsys-rep  --nsys export-->  sqlite        x.ncu-rep  --ncu --import-->  CSV

The programs are given a file and an output, never a shell line; they have MAX_SECONDS.
"""

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from stepscope.cache_files import is_trusted_file, make_trusted_folder
from stepscope.contract.run_folder import CACHE_FOLDER, atomic_write
from stepscope.errors import TraceError
from stepscope.trace.streams import Stream
from stepscope.units import digest_of, printable

_MAX_SECONDS = 3600
# characters of a program's output that are shown
_SAID = 200
_NAMES = {"nsys": "Nsight Systems", "ncu": "Nsight Compute"}
_BY_HAND = {
    "nsys": "nsys export --type=sqlite --include-blobs=true {}",
    "ncu": "ncu --import {} --csv --page raw",
}


def exported_report(path: Path, *, cache_folder: Path | None = None, keep: bool = True) -> Path:
    """Return the sqlite export of a `.nsys-rep`, cached if `keep`.

    It is in `.stepscope` next to the report, in `cache_folder`, or where neither is writable in the temporary folder.
    """
    return _exported(path, cache_folder or path.parent / CACHE_FOLDER, "sqlite", export_nsys, keep=keep)


def exported_metrics(path: Path) -> Path:
    """Return a `.ncu-rep` as CSV, cached in `.stepscope` next to it, or in the temporary folder."""
    return _exported(path, path.parent / CACHE_FOLDER, "csv", export_ncu, keep=True)


def _exported(path: Path, folder: Path, ending: str, export: Callable[[Path, Path], None], *, keep: bool) -> Path:
    status = Stream(path).path.stat()
    key = f"{path.absolute()} {status.st_size} {status.st_mtime_ns}".encode(errors="surrogateescape")
    is_kept = False
    with suppress(OSError):
        is_kept = keep and make_trusted_folder(folder) and os.access(folder, os.W_OK)
    parent = folder if is_kept else Path(tempfile.mkdtemp(prefix="stepscope-export-"))
    target = parent / f"{path.name}.{digest_of(key, 12)}.{ending}"
    if not is_trusted_file(target):
        export(path, target)
        target.chmod(0o600)
    return target


def export_nsys(path: Path, target: Path) -> None:
    """Write the sqlite export of a `.nsys-rep`; a `TraceError` where `nsys` is missing or fails."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".export-") as made:
        out = Path(made, "export.sqlite")
        options = ["export", "--type=sqlite", "--include-blobs=true", "--force-overwrite=true"]
        _run("nsys", [*options, f"--output={out}", str(path.absolute())], path, Path(made))
        if not out.is_file():
            raise TraceError(f"{printable(str(path))}: nsys succeeded but wrote nothing; run it by hand")
        out.replace(target)


def export_ncu(path: Path, target: Path) -> None:
    """Write a `.ncu-rep` as CSV; a `TraceError` where `ncu` is missing or fails."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".export-") as made:
        done = _run("ncu", ["--import", str(path.absolute()), "--csv", "--page", "raw"], path, Path(made))
    with atomic_write(target) as f:
        f.write(done)


EXPORTS = {"nsys": export_nsys, "ncu": export_ncu}


def require_tool(tool: str, path: Path) -> str:
    """Return the path of a program; a `TraceError` with what to do instead where it is not installed."""
    program = shutil.which(tool)
    if program is None:
        raise TraceError(
            f"{printable(str(path))}: only {_NAMES[tool]} reads this format, and {tool} is not on PATH; where it is, "
            f"run {_BY_HAND[tool].format(printable(path.name))} and give what it writes"
        )
    return program


def _run(tool: str, arguments: list[str], path: Path, folder: Path) -> bytes:
    import subprocess  # only where there is one to run

    program = require_tool(tool, path)
    shown, by_hand = printable(str(path)), _BY_HAND[tool].format(printable(path.name))
    try:
        done = subprocess.run(
            [program, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_MAX_SECONDS,
            cwd=folder,
            env={**os.environ, "LC_ALL": "C"},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise TraceError(f"{shown}: {tool} took more than {_MAX_SECONDS} s; run {by_hand}") from error
    except OSError as error:
        raise TraceError(f"{shown}: {tool} cannot be started: {error.strerror}; run {by_hand}") from error
    if done.returncode:
        said = printable((done.stderr or done.stdout).decode(errors="replace").strip()[-_SAID:])
        raise TraceError(f"{shown}: {tool} could not export it (exit code {done.returncode}): {said}")
    return done.stdout
