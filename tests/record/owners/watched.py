"""Owners of one call in this process, as the recorder would write them."""

from stepscope.record.config import RecordConfig
from stepscope.record.owners.frame_step import FrameStep, owners_of
from stepscope.record.window.budget import TypicalStep
from stepscope.record.window.guards import ProfilerGuard


def owners_in(step, *, model=None, number=7):
    """Return the owners of a step that is called here."""
    frames = FrameStep(ProfilerGuard(), RecordConfig(), TypicalStep(), step=number)
    frames.begin()
    assert frames.is_on, frames.why_not
    step()
    frames.end_mark()
    owners, _ = owners_of(frames.end(), step=number, rank=0, model=model, max_events=1_000_000, lines=frames.lines)
    return owners


def innermost(owners, stack):
    """Return `(file, line, line_to)` of a stack's innermost user frame, None where there is none."""
    frames = [owners["frames"][f] for f in owners["stacks"][stack]] if stack >= 0 else []
    users = [f for f in frames if f[3]]
    return (owners["files"][users[-1][0]], users[-1][1], users[-1][4]) if users else None


def training(owners):
    """Return the training thread's table."""
    return next(t for t in owners["threads"] if t["role"] == "training")


def operators(owners, thread=None):
    """Return `(name, innermost user frame, module)` of a thread's operators."""
    thread = thread or training(owners)
    return [
        (owners["names"][n], innermost(owners, s), owners["modules"][m] if m >= 0 else None)
        for n, s, m in zip(thread["name"], thread["stack"], thread["module"], strict=True)
    ]
