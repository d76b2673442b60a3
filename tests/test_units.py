"""Numbers and names as people read them."""

import pytest

from stepscope.units import ms, printable, readable_bytes, us


def test_times_keep_the_nanosecond() -> None:
    assert ms(1_234_567) == 1.234567
    assert us(1_234_567) == 1234.567
    assert ms(0.1) == 0.0
    assert us(-1500) == -1.5


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (999, "999 B"), (999.7, "1.0 kB"), (1000, "1.0 kB"), (1_500_000, "1.5 MB"), (999_960_000, "1.0 GB"),
        (7e15, "7000.0 TB"), (-4096, "-4.1 kB"),
    ],
)  # fmt: skip
def test_bytes_in_powers_of_1000(size: float, text: str) -> None:
    assert readable_bytes(size) == text


@pytest.mark.parametrize(
    "hostile",
    ["\x1b[31mred", "\x1b]52;c;aGk=\x07", "a\u202eb", "a\u2066b", "line\nbreak", "\ud800", "\u2028", "\x9b1m"],
)
def test_names_cannot_steer_a_terminal(hostile: str) -> None:
    shown = printable(hostile)
    assert shown.isprintable()
    assert "\\" in shown
    shown.encode("utf-8")


def test_long_names_are_cut_to_the_width() -> None:
    assert printable("x" * 30, width=10) == "x" * 9 + "…"
    assert printable("\x00" * 30, width=10) == "\\x00\\x00\\" + "…"
