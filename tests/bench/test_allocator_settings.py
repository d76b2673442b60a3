"""Allocator settings of one's own become variants; what is none is refused."""

import pytest

from stepscope.bench.sweeps.choices.allocator import sweep
from stepscope.errors import UsageError

SPEC = {"precision": "fp32"}


def test_settings_become_variants() -> None:
    given = ("max_split_size_mb:128,garbage_collection_threshold:0.6", "MALLOC_ARENA_MAX=1")
    device, host = sweep(SPEC, settings=given).variants[-2:]
    assert device.name == given[0] and device.only_on == "cuda"
    assert device.env["PYTORCH_ALLOC_CONF"] == device.env["PYTORCH_CUDA_ALLOC_CONF"] == given[0]
    assert dict(host.env) == {"MALLOC_ARENA_MAX": "1"} and host.only_on is None


@pytest.mark.parametrize("text", ["", "max_split_size_mb", "a b:1", "max_split_size_mb:64", "x=1", "A=\0"])
def test_what_is_no_setting_or_measured_anyway_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--setting"):
        sweep(SPEC, settings=(text,))
