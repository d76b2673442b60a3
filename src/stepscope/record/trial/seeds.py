"""Random numbers that are the same in every trial of a job that sets no seed; one that does has its own."""

import random
import sys

import torch

from stepscope.record.hooks.after_import import after_import

SEED = 0


def set_seeds() -> None:
    """Seed torch and Python now, numpy where it is, or once it is, imported."""
    random.seed(SEED)
    torch.manual_seed(SEED)
    after_import("numpy", _seed_numpy)


def _seed_numpy() -> None:
    numpy = sys.modules["numpy"]
    if hasattr(numpy, "random"):
        numpy.random.seed(SEED)
