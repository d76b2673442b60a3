"""Numbers in the units people read: nanoseconds to ms, bytes to MB, names made safe to print."""

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
_MAX_MS = 1e12  # thirty years


def ms(time_ns: int | float) -> float:
    """Return milliseconds, rounded to the nanosecond so that sums stay exact in print."""
    return round(float(time_ns) / NS_PER_MS, 6)


def ns_of_ms(time_ms: object) -> int | None:
    """Return whole nanoseconds of milliseconds from a file or an option, None where they are no finite number.

    >>> ns_of_ms(1.5), ns_of_ms(float("nan")), ns_of_ms("1.5")
    (1500000, None, None)
    """
    if not isinstance(time_ms, int | float) or isinstance(time_ms, bool) or not abs(time_ms) <= _MAX_MS:
        return None
    return round(time_ms * NS_PER_MS)


def us(time_ns: int | float) -> float:
    """Return microseconds."""
    return round(float(time_ns) / NS_PER_US, 3)


def readable_bytes(size_bytes: int | float) -> str:
    """Return `1.5 MB` style text in powers of 1000."""
    size = float(size_bytes)
    if abs(size) < 999.5:
        return f"{size:.0f} B"
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if abs(size) < 999.95:  # as printed below 1000
            return f"{size:.1f} {unit}"
    size /= 1000
    return f"{size:.1f} TB"


def printable(name: str, *, width: int = 200) -> str:
    """Return `name` with control, escape and bidirectional characters shown as escapes, cut to `width`.

    Names come from traces and traces are untrusted: they may hold terminal escape sequences.
    """
    safe = escaped(name[: width + 1])  # what is cut off needs no escaping
    return safe if len(safe) <= width else safe[: width - 1] + "…"


def escaped(text: str, *, keep: str = "") -> str:
    """Return `text` with what steers a terminal or turns its letters around as escapes, except the letters in `keep`.

    >>> escaped("a\\x1b[31mb")
    'a\\\\x1b[31mb'
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape", "surrogatepass").decode("ascii") for c in text
    )
