"""The run that most commands are tried on."""

from pathlib import Path

import pytest


@pytest.fixture
def folder(simulated_folder: Path) -> Path:
    return simulated_folder
