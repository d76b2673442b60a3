"""Variables that torch's profiler reads once, at its first session: set as early as possible, never over the user's.

    KINETO_LOG_LEVEL   else each start and stop is announced on the job's stderr
    TEARDOWN_CUPTI     else CUPTI stays attached after a session, and every later CUDA call of the host is 15 to 50 %
                       slower; with it, steps after the window are as fast as those before

Standard library only: the launcher and every Python process of a job set them.
"""

from collections.abc import MutableMapping

KINETO_SETTINGS = {"KINETO_LOG_LEVEL": "99", "TEARDOWN_CUPTI": "1"}


def set_kineto_settings(environ: MutableMapping[str, str]) -> None:
    """Set what the user has not set."""
    for name, value in KINETO_SETTINGS.items():
        environ.setdefault(name, value)
