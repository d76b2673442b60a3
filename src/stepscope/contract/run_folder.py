"""The names inside a run folder, shared by the side that writes it and the side that reads it.

    run.json                    written last by rank 0
    rank00000.pt.trace.json.gz  Kineto trace of the profiled window
    rank00000.steps.jsonl       every step, profiled or not
    rank00000.samples.jsonl     stacks of all Python threads at moments spread over the run
    rank00000.telemetry.jsonl   state, power and energy counters of the device and the host
    rank00000.core_waits.jsonl  when the training thread waited for a core while it was profiled
    rank00000.owners.json.gz    whose line each operator is, from one step with Python frames
    source/                     the text of the user's files in those frames
    rank00000.<what>            memory snapshot, flight recorder dump, NCCL log, Nsight export, when captured
    rank00000.facts.jsonl       what one rank knows of itself and its job, one line
    launch.jsonl                when `stepscope record` started the job, when that ended, and its exit code
    window1/                    a second profiled window, and so on
    live/                       while the job runs: a request for a window, its plan, ranks that stand still

Standard library only: the job side imports it.
"""

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal, TypedDict

from stepscope.errors import UsageError
from stepscope.side_file import parsed_json, read_side_file, refuse_output

SCHEMA = 1
RUN_JSON = "run.json"
CACHE_FOLDER = ".stepscope"
# in the newest run folder of a launch; not `.json`, which trace viewers take for a trace
LAUNCH = "launch.jsonl"
SOURCE_FOLDER = "source"
TELEMETRY = "telemetry.jsonl"
CORE_WAITS = "core_waits.jsonl"
# in the folder of `stepscope tune`
TUNE_JSON = "tune.json"


def rank_file(rank: int, what: str) -> str:
    """Return the name of one rank's file, e.g. `rank00003.steps.jsonl` for `what='steps.jsonl'`."""
    return f"rank{rank:05d}.{what}"


def trace_file(rank: int) -> str:
    """Return the name of one rank's trace."""
    return rank_file(rank, "pt.trace.json.gz")


def steps_file(rank: int) -> str:
    """Return the name of one rank's step log."""
    return rank_file(rank, "steps.jsonl")


def owners_file(rank: int, *, of: str = "") -> str:
    """Return the name of one rank's owners: the lines of one step's operators, or those of a capture."""
    return rank_file(rank, f"{of}owners.json.gz")


# of a trace that was recorded while CUDA graphs were captured, and of its owners: no rank of its own
CAPTURE = "capture."
# of the lines of compiled kernels
INDUCTOR = "inductor.json"


def facts_file(rank: int) -> str:
    """Return the name of one rank's facts; not `.json`, which trace viewers take for a trace."""
    return rank_file(rank, "facts.jsonl")


def of_window(number: int, name: str) -> str:
    """Return the path of a profiled window's file: second and later windows have folders.

    >>> of_window(0, "rank00000.pt.trace.json.gz"), of_window(2, "rank00000.pt.trace.json.gz")
    ('rank00000.pt.trace.json.gz', 'window2/rank00000.pt.trace.json.gz')
    """
    return name if number == 0 else f"window{number}/{name}"


def rank_of(name: str) -> int | None:
    """Return the rank in a run folder's file name, or None for any other name."""
    found = re.match(r"rank(\d{5,9})\.", name)
    return int(found.group(1)) if found else None


def json_object(text: bytes) -> dict[str, Any] | None:
    """Return the JSON object that a text is, None where it is damaged or anything else."""
    try:
        found = parsed_json(text).value
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def json_object_in(path: Path) -> dict[str, Any]:
    """Return the JSON object that a file holds, an empty one where the file is missing, damaged or anything else."""
    try:
        return json_object(read_side_file(path)) or {}
    except OSError:
        return {}


@contextmanager
def atomic_write(
    path: str | os.PathLike[str], *, mode: str = "wb", synced: bool = True, permissions: int = 0o666
) -> Iterator[IO[bytes]]:
    """Write a temporary file next to `path` and rename it when complete; remove it on failure.

    Files that are not regular, or behind a link of another user, are refused (`refuse_output`). After a crash there is
    the old file or the new, never half; unless it need not be `synced` with the disk, which takes a while: for files
    that say themselves whether they are whole. The umask is taken from `permissions`.
    """
    target = Path(path)
    refuse_output(target)
    # part of the name only: a file name has a maximum length
    fd, temporary = tempfile.mkstemp(prefix=f".{target.name[:40]}.", suffix=".tmp", dir=target.parent)
    try:
        with os.fdopen(fd, mode) as f:
            yield f
            if synced:
                f.flush()
                os.fsync(f.fileno())
        Path(temporary).chmod(permissions & ~_umask())
        refuse_output(target)  # once more: the writing may have taken minutes
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


# The hosts of a Slurm job, from its short form of a list of them.


def first_node(nodes: str) -> str:
    """Return the first host of Slurm's short form of a list.

    >>> first_node("gpu[07-09,12],login1")
    'gpu07'
    """
    found = re.match(r"([^\[,]+)(?:\[(\w+)[^\]]*\]([^,\[]*))?", nodes)
    if found is None:
        raise UsageError(f"slurm: {nodes!r} is not a list of hosts such as gpu[07-09]; check SLURM_JOB_NODELIST")
    return "".join(part or "" for part in found.groups())


# `rankNNNNN.owners.json.gz`: whose line each operator of a step is, from one step with Python frames after the window.
#
#     stacks[s] = [frame, ...]     outermost first: the user's frames, then the first frame of a library below them
#     frames[f] = [file, line, function, is_user, line_to]
#     threads[t]["stack"][i] = s   of operator i, in order of start; -1 for none
#
# `line_to` equals `line` where the executing line is known. Operator and indexing syntax (`x + y`, `x[1:]`) raise no
# call event: such an operator ran after the call in `line` and not after the one in `line_to`, which in a loop may be
# smaller. 0 means "no later call in that function".
#
# Standard library only: both sides import it.

OWNERS_SCHEMA = 1
MAX_SOURCE_FILE_BYTES = 256_000
MAX_SOURCE_BYTES = 4_000_000

EXECUTING: Literal["executing"] = "executing"
FUNCTIONS: Literal["functions"] = "functions"
TRAINING: Literal["training"] = "training"
AUTOGRAD: Literal["autograd"] = "autograd"
OTHER: Literal["other"] = "other"
# at the end of a function's name: a module's call ran it before or after its `forward`
HOOK = " (module hook)"
# in a column of numbers: there is none
NONE = -1


class OwnersThread(TypedDict):
    """Columns of one thread: an entry per operator or annotation, in order of start; depth counts both."""

    role: Literal["training", "autograd", "other"]
    name: list[int]
    depth: list[int]
    stack: list[int]
    module: list[int]
    sequence: list[int]
    step: list[int]
    # [i, stack, ns, calls]: Python time in no operator before operator i; calls that begin or end in it
    python: list[list[int]]


class Owners(TypedDict):
    """The whole file."""

    schema: int
    rank: int
    torch: str
    steps: list[int]
    lines: Literal["executing", "functions"]
    root: str
    files: list[str]
    frames: list[list[int | str]]
    stacks: list[list[int]]
    modules: list[str]
    names: list[str]
    threads: list[OwnersThread]
    source_files: list[str]
    buckets: list[list[str]] | None
    loader: list[list[str | float]] | None
    reasons: dict[str, str]
