import re
from pathlib import Path

import pytest

from stepscope.cost import kernel_names
from stepscope.cost import kernel_names as tensor_core_names
from stepscope.cost.chips import built_in_chips, shared_names
from stepscope.cost.kernel_names import any_of, holds, matches_whole, plain_part

KERNELS = Path(__file__).parents[1] / "data" / "cost" / "kernel_names.tsv"


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


def test_a_name_matches_as_the_regular_expression_alone_would_say():
    patterns = [p for row in built_in_chips() for p in row.match]
    patterns += [p for shared in shared_names() for p in shared.match]
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


def test_fragments_are_found_as_one_regular_expression_would_find_them():
    tables = [*kernel_names._RULES, *kernel_names._INDUCTOR_RULES, *tensor_core_names._TYPES]
    tables += [
        ("", kernel_names._SERVES_A_PRODUCT),
        ("", tensor_core_names._TENSOR_CORE_NAMES_PLAIN),
        ("", tensor_core_names._TENSOR),
    ]
    names = [line.split("\t")[3].lower() for line in KERNELS.read_text(encoding="utf-8").splitlines()[1:]]
    for _, fragments in tables:
        whole = re.compile("|".join(pattern or part for part, pattern in fragments))
        for name in names:
            assert holds(name, fragments) == bool(whole.search(name)), (name, whole.pattern)
    assert any_of("Abc", "x|yz", "d(e)?") == (("abc", None), ("d", "d(e)?"), ("", "x|yz"))
