"""Ranks run under Nsight Systems (`nsys`) or Nsight Compute (`ncu`): one output per rank, of our window alone.

A rank's Python, at its very start, replaces itself by the tool with the same command under it, so any launcher works:
torchrun, srun and mpirun set the rank of a process in variables. A job of one process is started under the tool. The
window opens and closes the tool's range through CUDA's profiler interface (`cuda_range`). When the job is over the same
tool exports each output next to itself, so that a machine without the tool can read it.

Standard library only: it runs before torch is imported.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from stepscope.contract.run_folder import rank_file
from stepscope.record.config import RecordConfig, place_by_variables
from stepscope.side_file import PRIVATE, open_private

UNDER_TOOL = "STEPSCOPE_UNDER_TOOL"
# of each output; what is not exported by then stays as the tool wrote it
_EXPORTED_AS = {".nsys-rep": "nsys.sqlite", ".ncu-rep": "ncu.csv"}
_NAMES = {"nsys": "Nsight Systems", "ncu": "Nsight Compute"}
_STARTS_RANKS = {
    *("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "deepspeed"),
    *("srun", "mpirun", "mpiexec"),
}


def why_not_installed(tool: str) -> str | None:
    """Return a line saying that the tool is missing and what to do, None where it is there."""
    if shutil.which(tool) is not None:
        return None
    return (
        f"{tool} is not installed ({_NAMES[tool]}: not found on PATH); the job is recorded by torch's profiler "
        f"instead; put the folder that holds {tool} on PATH"
    )


def under_tool(command: Sequence[str], config: RecordConfig, *, rank: int) -> list[str]:
    """Return the command with the tool in front, writing one rank's output."""
    assert config.outside_tool is not None and config.outside_folder is not None
    out = str(Path(config.outside_folder, rank_file(rank, "x")).with_suffix(""))  # the tool adds its own ending
    front = _nsys(config, out) if config.outside_tool == "nsys" else _ncu(config, out)
    return [*front, *command]


def start_under_tool(config: RecordConfig | None, environ: Mapping[str, str]) -> None:
    """Replace this process by the tool with this very command under it, where that is this rank's lot."""
    if config is None or config.outside_tool is None or UNDER_TOOL in environ:
        return
    place = place_by_variables(environ)
    if place is None or not (config.ranks is None or place.rank in config.ranks):
        return
    command = under_tool([sys.executable, *sys.orig_argv[1:]], config, rank=place.rank)
    os.execvpe(command[0], command, {**environ, UNDER_TOOL: "1"})


def is_one_process(command: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Return whether the command trains in its own process, as far as visible: it starts no ranks and is none."""
    starts_ranks = any(Path(word).name in _STARTS_RANKS for word in command)
    return not starts_ranks and place_by_variables(environ) is None


def keep_outputs(config: RecordConfig, run_folders: Sequence[Path]) -> list[Path]:
    """Return where the outputs of this machine's ranks are now: in the run folder, or where there is none at `out`."""
    assert config.outside_folder is not None
    made, target = Path(config.outside_folder), run_folders[0] if run_folders else Path(config.out)
    kept = []
    for path in sorted(made.iterdir()):
        target.mkdir(parents=True, exist_ok=True)
        kept.append(Path(shutil.move(path, target / path.name)))
        with contextlib.suppress(OSError):  # a file system without permissions
            kept[-1].chmod(PRIVATE)
    made.rmdir()
    return kept


def exported(outputs: Sequence[Path]) -> list[Path]:
    """Return the outputs in a form that every machine reads, where the tool can export them."""
    return [export for output in outputs if (export := _exported(output)) is not None]


def _exported(output: Path) -> Path | None:
    ending = _EXPORTED_AS.get(output.suffix)
    if ending is None or not output.is_file():
        return None
    target, part = output.with_suffix(f".{ending}"), output.with_suffix(f".{ending}.part")
    if ending == "nsys.sqlite":
        options = ["--type=sqlite", "--include-blobs=true", "--force-overwrite=true", f"--output={part}"]
        command = ["nsys", "export", *options, str(output)]
    else:
        command = ["ncu", "--import", str(output), "--csv", "--page", "raw"]
    try:
        with os.fdopen(open_private(part if ending == "ncu.csv" else os.devnull), "wb") as said:
            subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.DEVNULL, timeout=600,
                env={**os.environ, "LC_ALL": "C"}, check=True, umask=0o077,
            )  # fmt: skip
        part.replace(target)
    except (OSError, subprocess.SubprocessError):
        part.unlink(missing_ok=True)
        return None
    return target


def _nsys(config: RecordConfig, out: str) -> list[str]:
    return [
        "nsys", "profile", "--trace=cuda,nvtx,osrt,cudnn,cublas", "--sample=process-tree", "--cuda-memory-usage=true",
        "--capture-range=cudaProfilerApi", "--capture-range-end=stop", f"--duration={round(config.max_seconds)}",
        "--kill=none", "--force-overwrite=true", f"--output={out}",
    ]  # fmt: skip


def _ncu(config: RecordConfig, out: str) -> list[str]:
    return [
        "ncu", "--set=full", "--profile-from-start=off", "--target-processes=all",
        f"--kernel-name={config.kernels}", f"--launch-count={config.launches}", "--force-overwrite", f"--export={out}",
    ]  # fmt: skip
