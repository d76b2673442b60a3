"""What did a serving engine run in one step, by the name of its range?

    vLLM            execute_context_9(8155)_generation_37(37)
                    execute_8192_context_9(sq8155sk8430...)_generation_37(sq37...)
                    execute_new_9_cached_37
    SGLang          step[EXTEND bs=15 toks=15360], step[DECODE bs=64]
    TensorRT-LLM    [Executor] _forward_step 12: 3 ctx reqs, 4096 ctx tokens, 8 gen reqs

Context requests are prefill: all tokens of their prompts at once. Generation requests are decode: one token each,
unless the name says more (speculation).
"""

import re
from functools import lru_cache

from stepscope.dataclass import dataclass

PREFILL, DECODE, MIXED = "prefill", "decode", "mixed"

_TOKENS = r"\((?:sq)?(\d{1,12})[^)]*\)"
_VLLM = re.compile(rf"^execute(?:_\d{{1,12}})?_context_(\d{{1,9}}){_TOKENS}_generation_(\d{{1,9}}){_TOKENS}$")
_VLLM_OLD = re.compile(r"^execute_new_(\d{1,9})_cached_(\d{1,9})$")
_SGLANG = re.compile(r"^step\[(EXTEND|PREFILL|DECODE|MIXED|TARGET_VERIFY)\b([^\]]*)\]$", re.IGNORECASE)
_SGLANG_FIELD = re.compile(r"(bs|toks)=(\d{1,12})")
_TENSORRT = re.compile(
    r"^(?:\[Executor\]\s*)?_forward_step (\d{1,12}): (\d{1,9}) ctx reqs,(?: (\d{1,12}) ctx tokens,)? (\d{1,9}) gen reqs"
)
_ANY = re.compile(r"^(execute_(\d|context|new)|step\[|(\[Executor\]\s*)?_forward_step )", re.IGNORECASE)


@dataclass(frozen=True)
class ServingStep:
    """One step of a serving engine. None: the name does not say."""

    kind: str
    """prefill, decode, or mixed where a step did both"""
    prefill_requests: int | None
    prefill_tokens: int | None
    decode_requests: int | None
    decode_tokens: int | None

    @property
    def tokens(self) -> int | None:
        """Return the tokens that the step computed, None where either part is unknown."""
        if self.prefill_tokens is None or self.decode_tokens is None:
            return None
        return self.prefill_tokens + self.decode_tokens


@lru_cache(maxsize=4096)
def serving_step(name: str) -> ServingStep | None:
    """Return what the step of that name ran, None for any other range.

    >>> serving_step("step[DECODE bs=64]").decode_tokens
    64
    """
    if not _ANY.match(name):
        return None
    if found := _VLLM.match(name):
        return _step(*(int(group) for group in found.groups()))
    if found := _VLLM_OLD.match(name):
        fresh, running = (int(group) for group in found.groups())
        return _step(fresh, None if fresh else 0, running, running)
    if found := _SGLANG.match(name):
        return _sglang(found.group(1).upper(), found.group(2))
    if found := _TENSORRT.match(name):
        context, generating = int(found.group(2)), int(found.group(4))
        tokens = int(found.group(3)) if found.group(3) else None if context else 0
        return _step(context, tokens, generating, generating)
    return None


def _sglang(mode: str, rest: str) -> ServingStep:
    said = {key: int(value) for key, value in _SGLANG_FIELD.findall(rest)}
    size, tokens = said.get("bs"), said.get("toks")
    if mode in ("DECODE", "TARGET_VERIFY"):
        return ServingStep(DECODE, 0, 0, size, tokens if tokens is not None else size)
    if mode == "MIXED":
        return ServingStep(MIXED, None, None, None, None)
    return ServingStep(PREFILL, size, tokens, 0, 0)


def _step(prefill: int, prefill_tokens: int | None, decode: int, decode_tokens: int | None) -> ServingStep:
    kind = MIXED if prefill and decode else PREFILL if prefill else DECODE
    return ServingStep(kind, prefill, prefill_tokens, decode, decode_tokens)
