import re

from stepscope.cost.chips.name_pattern import matches_whole
from stepscope.cost.chips.table import built_in_chips, shared_names


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
