"""Scalars for TensorBoard, on the disk as the training goes on."""

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from stepscope.contract.tensorboard import scalars_record, version_record
from stepscope.output_path import refuse_output


class Events:
    """One event file; every call of `scalars` is on the disk before it returns."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        refuse_output(self.path)
        self._file: IO[bytes] = self.path.open("ab")
        self._write(version_record(time.time()))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write one value of each tag for a step."""
        self._write(scalars_record(step, values, wall_s=time.time()))

    def close(self) -> None:
        """End the file."""
        self._file.close()

    def _write(self, record: bytes) -> None:
        self._file.write(record)
        self._file.flush()
