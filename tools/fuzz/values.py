"""Values that no honest writer puts into a field, as JSON text, and odd words for a command line."""

import json

ESC = "\x1b]0;fuzzed\x07\x1b[31m"
MARKUP = "[bold]fuzzmark[/bold][/nope]"
SCRIPT = "</script><script>fuzzed()</script><img src=x onerror=fuzzed()>"

NUMBERS = (
    *("0", "1", "-1", "0.5", "-0.0", "2147483648", "4294967296", "9007199254740993"),
    *(str(2**62), str(2**63 - 1), str(-(2**63)), str(2**63), str(2**64), "1" + "0" * 400, "-" + "9" * 400, "9" * 5000),
    *("1e18", "1e19", "1e308", "1e-320", "1e999", "-1e999", "NaN", "Infinity", "-Infinity", "1" * 30 + ".5"),
)
_STRINGS = (
    *("", "x", "12", "-1", "1e999", "nan", "\u0663", "[1, 2]", "[[1], 5]", "[" * 3000, "2" * 400, "%s%n{}", "\x00"),
    *(ESC, MARKUP, SCRIPT, "a\nb\rc", "\u202eabc", "\U0001f4a9", "A" * 100_000, "../../etc/passwd", "//etc/passwd"),
    *("ProfilerStep#99999999999999999999", "ProfilerStep#-1", "ncclDevKernel_AllReduce", "nccl:all_reduce"),
)
TEXTS = (*map(json.dumps, _STRINGS), '"\\ud800"', '"\\u0000"', '"\x01"')
OTHERS = (
    *("null", "true", "false", "[]", "{}", "[5]", "[null]", "[[]]", '{"a": 1}', '[{"rank": -1}]', "[1e999, NaN]"),
    *("[[[[4, 4], 5], null], true]", "[" * 500 + "]" * 500, '{"a":' * 500 + "1" + "}" * 500, "[" * 5000 + "]" * 5000),
    *("[" + ",".join(["0"] * 50_000) + "]", "{" + ",".join(f'"k{i}": {i}' for i in range(2000)) + "}"),
    *("", "undefined", "{", "]", ","),
)
VALUES = (*NUMBERS, *TEXTS, *OTHERS)

_PLAIN_WORDS = """
- -- 0 -1 1 2 0.5 -0 +5 1_0 0x10 1e400 -1e400 1e308 1e-320 nan inf -inf x %s * [ **/* / . .. = a=b > all a,b ,
10:5 5:10 : 1: :1 -1:3 1:2:3 0,1 0- 0-9999999999 3-1 1:1 50:5 inf:5 50:-1 0:0 nan:nan 25MB 1e400MB -1GB NaNGB
step_ms>5% step_ms>nan step_ms>1e999% network=0x network=nanx network=1e999x bucket_mb=0 bucket_mb=1e-300
auto loader optimizer Adam Adam#1 Adam#-1 Adam#\xb2 #1 Adam#99999999999
microbatches=99999999999 straggler=99 kernel:x=2x missing missing/folder/file /dev/null/x http://[ file:///etc/passwd
"""
WORDS = (
    *_PLAIN_WORDS.split(),
    *(str(2**31), str(2**63 - 1), str(2**63), str(2**64), "9" * 400, "9" * 5000, "99999999"),
    *("", " ", "a\nb", "\udcff", "\U0001f4a9", "\u0663", "\xb2", "\xb2:5", ESC, MARKUP, SCRIPT),
    *("A" * 300, "A" * 70_000, "SELECT 1", "SELECT", "SELECT * FROM events", "SELECT repeat('x', 1000000000)"),
)
