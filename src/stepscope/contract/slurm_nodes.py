"""The hosts of a Slurm job, from its short form of a list of them."""

import re

from stepscope.errors import UsageError


def first_node(nodes: str) -> str:
    """Return the first host of Slurm's short form of a list.

    >>> first_node("gpu[07-09,12],login1")
    'gpu07'
    """
    found = re.match(r"([^\[,]+)(?:\[(\w+)[^\]]*\]([^,\[]*))?", nodes)
    if found is None:
        raise UsageError(f"slurm: {nodes!r} is not a list of hosts such as gpu[07-09]; check SLURM_JOB_NODELIST")
    return "".join(part or "" for part in found.groups())
