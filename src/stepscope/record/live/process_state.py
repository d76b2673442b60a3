"""What the system says of a process that gives no answer: its state, and the call in the kernel that it waits in."""

from pathlib import Path

_STATES = {
    "R": "it runs: a call in C holds the interpreter's lock",
    "S": "it sleeps in a call that holds the interpreter's lock",
    "D": "it waits for the kernel: storage or a driver",
    "T": "it was stopped by a signal",
    "t": "a debugger holds it",
    "Z": "it has ended",
}


def process_state(pid: int, *, proc: Path = Path("/proc")) -> str:
    """Return one sentence on a process; what is not known is left out."""
    try:
        text = (proc / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
        state = text.rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "no answer from its interpreter"
    waits_in = _waits_in(proc / str(pid) / "wchan")
    known = _STATES.get(state, f"state {state}")
    return f"no answer from its interpreter; {known}{f' ({waits_in})' if waits_in else ''}"


def _waits_in(path: Path) -> str:
    try:
        found = path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
    return found[:60] if found not in ("", "0") else ""
