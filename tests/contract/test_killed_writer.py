"""A process that is killed while it writes an output leaves the old file whole."""

import os
import signal
import subprocess
import sys
from pathlib import Path

WRITER = """
import sys, time
from stepscope.contract.run_folder import atomic_write
with atomic_write(sys.argv[1]) as f:
    f.write(b"new" * 100_000)
    f.flush()
    print("half", flush=True)
    time.sleep(600)
"""


def test_a_killed_writer_leaves_the_old_file_whole(tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    target.write_text("old")
    with subprocess.Popen([sys.executable, "-c", WRITER, str(target)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"half\n"
        os.kill(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert target.read_text() == "old"
    left = [p.name for p in tmp_path.iterdir() if p != target]
    assert all(name.startswith(".report.json.") and name.endswith(".tmp") for name in left)
