"""What holds for all tests: no example is too slow, every run tries the same examples, and Ctrl-C works."""

import gc
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
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


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Import all without looking for garbage, and never look through it later: it took a tenth of the quick tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the simulated traces of two ranks, the second one late; it is only read."""
    from tests.analyze.simulate import SYNC, WAIT, collective, kernel, simulate

    place = tmp_path_factory.mktemp("simulated") / "job"
    place.mkdir()
    step = [kernel(300), collective(500), kernel(200), WAIT, kernel(100), SYNC]
    for trace in simulate(step, [kernel(2300), *step[1:]], steps=4).traces:
        trace.write(place)
    return place


@pytest.fixture(scope="session")
def late_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the traces of four ranks, rank 1 late; it is only read."""
    from tests.diagnose.late import late_run

    late_run(place := tmp_path_factory.mktemp("late"))
    return place


@pytest.fixture
def large_folder(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the simulated run that counts as large: what is found in it is cached."""
    monkeypatch.setattr("stepscope.document.cache.MIN_RAW_BYTES", 1)
    return Path(shutil.copytree(folder, tmp_path / "run"))


@pytest.fixture
def analysed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the runs that were analysed, which grow."""
    from stepscope.analyze import account

    runs, account_of = list[Any](), account.account_of

    def counted(run: Any, **given: Any) -> Any:
        runs.append(run)
        return account_of(run, **given)

    monkeypatch.setattr(account, "account_of", counted)
    return runs
