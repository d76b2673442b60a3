"""`stepscope.lab.bench.config`, as scripts import it."""

from stepscope.lab.bench.config import *  # noqa: F403
