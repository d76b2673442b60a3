"""Names of serving engines' steps tell requests and tokens."""

import pytest

from stepscope.run.steps import serving_step


@pytest.mark.parametrize(
    ("name", "kind", "tokens", "decoded"),
    [
        ("execute_context_9(8155)_generation_37(37)", "mixed", 8192, 37),
        ("execute_8192_context_9(sq8155sk8430sqsq7sqsk7)_generation_37(sq37sk34489sqsq37sqsk34489)", "mixed", 8192, 37),
        ("execute_context_0(0)_generation_64(64)", "decode", 64, 64),
        ("execute_new_2_cached_0", "prefill", None, 0),
        ("execute_new_0_cached_8", "decode", 8, 8),
        ("step[EXTEND bs=15 toks=15360]", "prefill", 15360, 0),
        ("step[DECODE bs=64]", "decode", 64, 64),
        ("[Executor] _forward_step 12: 0 ctx reqs, 0 ctx tokens, 8 gen reqs", "decode", 8, 8),
        ("_forward_step 3: 2 ctx reqs, 4096 ctx tokens, 0 gen reqs", "prefill", 4096, 0),
    ],
)
def test_names_of_engines(name: str, kind: str, tokens: int | None, decoded: int) -> None:
    step = serving_step(name)
    assert step is not None
    assert (step.kind, step.tokens, step.decode_tokens) == (kind, tokens, decoded)
