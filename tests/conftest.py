"""What holds for all tests: no example is too slow, every run tries the same examples, and Ctrl-C works."""

import os
import signal

from hypothesis import settings
from tests.job_environment import LAZY_TORCH, python_path

settings.register_profile("stepscope", deadline=None, derandomize=True)
settings.load_profile("stepscope")

# A shell that starts the tests in the background has them ignore Ctrl-C, and every job they start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Threads of OpenMP wait by spinning: several jobs of two ranks on two cores would spend most of their time on that.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A rank that imports what few jobs use takes twice the CPU.
if str(LAZY_TORCH) not in (path := os.environ.get("PYTHONPATH", "")):
    os.environ["PYTHONPATH"] = python_path(*filter(None, [path]))
