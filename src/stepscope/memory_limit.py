"""A bound on the memory that this process may take from here on."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from stepscope.side_file import read_side_text


@contextmanager
def limited_memory(more_bytes: int) -> Iterator[None]:
    """Let allocations fail beyond `more_bytes` of what is in use now; without effect where the system has no limits.

    The limit is of written memory, not of addresses: threads reserve gigabytes of these.
    """
    try:
        import resource

        used = int(read_side_text("/proc/self/statm").split()[5]) * os.sysconf("SC_PAGE_SIZE")
    except (ImportError, OSError, ValueError, IndexError):
        yield
        return
    before, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limits = [used + more_bytes, *(limit for limit in (before, hard) if limit != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, hard))
