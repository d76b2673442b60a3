import pytest

from stepscope.cost.plain_part import plain_part


@pytest.mark.parametrize(
    ("pattern", "part"),
    [
        ("NVIDIA H200", "NVIDIA H200"),
        (r"(Tesla |NVIDIA )?V100-SXM[23]-16GB(-\w+)?", "V100-SXM"),
        ("NVIDIA H100[- ]SXM5?([- ]80GB)?", "NVIDIA H100"),
        (r".*\bMIG\b.*", "MIG"),
        (r"HL-225\w?", "HL-225"),
        ("abc*d", "ab"),
        ("(?<!masked_)fill_", "fill_"),
        ("conv(?!e)", "conv"),
        (r"softmax_warp_\w+<[^>]*, \d+, true", "softmax_warp_"),
        ("(?:ab)?cd$", "cd"),
        ("(?i:ab)cd", ""),
        ("(?P<n>ab)cd", ""),
        ("ab(?#no)cd", ""),
        ("a+b?", ""),
        ("a|b", ""),
        (r"a\x41", ""),
        (r"(abc)\1", ""),
        ("abc{0}", ""),
        ("(?x)a b", ""),
        ("(a(b)?)?c", ""),
        ("[)]abc", ""),
        ("(a[)]b)c", ""),
        (r"\(abc\)", ""),
        ("abc??", ""),
        ("^abc$", ""),
        ("", ""),
    ],
)
def test_a_plain_part_is_in_all_that_a_pattern_matches(pattern, part):
    assert plain_part(pattern) == part
