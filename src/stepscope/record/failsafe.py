"""Training comes first: whatever fails in the recorder is one line on stderr, and the recorder goes off."""

import sys
import traceback

from stepscope.record.progress_notes import is_news

_PREFIX = "stepscope:"


def say(text: str) -> None:
    """Write one line to stderr, once per machine and job; a closed stderr is no reason to fail."""
    if not is_news(text):
        return
    try:
        sys.stderr.write(f"{_PREFIX} {text}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        pass


def explain(error: BaseException) -> str:
    """Return `Kind: message (file:line)` for a warning line."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno})" if frames else ""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}{where}"
