"""Keep our frames out of a script's tracebacks: an error that passes through a hook looks as it would without us.

try:
    result = original(*args)
except BaseException as e:
    leave_out(e)
    raise                    bare: a re-raise adds no entry for the frame that it is in
"""


def leave_out(error: BaseException) -> None:
    """Take the caller's frame, the newest entry, off the traceback of an error that it has just caught."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next
