import re

import pytest

from stepscope.cost.chips.name_pattern import matches_whole, plain_part
from stepscope.cost.chips.table import built_in_chips, shared_names


@pytest.mark.parametrize(
    ("pattern", "part"),
    [
        ("NVIDIA H200", "nvidia h200"),
        (r"(Tesla |NVIDIA )?V100-SXM[23]-16GB(-\w+)?", "v100-sxm"),
        ("NVIDIA H100[- ]SXM5?([- ]80GB)?", "nvidia h100"),
        (r".*\bMIG\b.*", "mig"),
        (r"HL-225\w?", "hl-225"),
        ("abc*d", "ab"),
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


def test_a_name_matches_as_the_regular_expression_alone_would_say():
    patterns = [p for row in (*built_in_chips(), *shared_names()) for p in row.match]
    patterns += ["My Device.*", "a|NVIDIA H200", r"K\d{2}", "(?s:.*)", "(NVIDIA |)L4", "", r"\w+ [^ ]+"]
    names = [row.name for row in built_in_chips()]
    names += [re.sub(r"\(([^()]*?)(\|[^()]*)?\)\??|[?*]|\\w", r"\1", p).replace("[23]", "2") for p in patterns]
    names += [
        "nvidia h200",
        "NVIDIA A100-PG509-210",
        "GRID A100-10C",
        "A100-10C",
        "NVIDIA H100-SXM5 80GB",
        "K80",
        "\u212a80",
    ]
    names += ["NVIDIA A100-SXM4-40GB MIG 1g.5gb", "AMD Instinct MI250X/MI250", "GR\u0131D 5", "HL-325L", "", "cpu"]
    for pattern in patterns:
        for name in names:
            expected = re.fullmatch(pattern, name, re.IGNORECASE) is not None
            assert matches_whole(pattern, name) == expected, (pattern, name)
