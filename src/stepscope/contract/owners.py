"""`rankNNNNN.owners.json.gz`: whose line each operator of a step is, from one step with Python frames after the window.

    stacks[s] = [frame, ...]     outermost first: the user's frames, then the first frame of a library below them
    frames[f] = [file, line, function, is_user, line_to]
    threads[t]["stack"][i] = s   of operator i, in order of start; -1 for none

`line_to` equals `line` where the executing line is known. Operator and indexing syntax (`x + y`, `x[1:]`) raise no call
event: such an operator ran after the call in `line` and not after the one in `line_to`, which in a loop may be smaller.
0 stands for "no later call in that function".

Standard library only: both sides import it.
"""

from typing import Literal, TypedDict

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
    python: list[list[int]]  # [i, stack, ns]: Python time in no operator before operator i


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
