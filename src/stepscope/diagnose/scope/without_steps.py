"""A finding in the words of a run without steps: what rules say of a step then holds for the whole window."""

import re
from dataclasses import replace

from stepscope.diagnose.finding import Candidate

_WORDS = (
    (re.compile(r"\b(each|every) step waits\b"), "the job waits"),
    (re.compile(r"\bThe step waits\b"), "The job waits"),
    (re.compile(r",? (per|in each|in every) step\b"), " over the window"),
    (re.compile(r"\b([Tt])he step\b"), r"\1he window"),
)


def told_of_the_window(candidate: Candidate) -> Candidate:
    """Return the same finding without a word of steps in title, cause and evidence."""
    evidence = tuple(replace(e, what=_of_window(e.what), unit=_of_window(e.unit)) for e in candidate.evidence)
    return replace(candidate, title=_of_window(candidate.title), cause=_of_window(candidate.cause), evidence=evidence)


def _of_window(text: str) -> str:
    for pattern, words in _WORDS:
        text = pattern.sub(words, text)
    return text
