import pytest

from stepscope.record.collectives import entry_bytes, operation_of


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("nccl:all_reduce", "all_reduce"),
        ("gloo:all_reduce", "all_reduce"),
        ("nccl:_all_gather_base", "all_gather"),
        ("nccl:_reduce_scatter_base", "reduce_scatter"),
        ("nccl:reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("nccl:all_to_all", "all_to_all"),
        ("nccl:all_reduce_barrier", "barrier"),
        ("nccl:send 0->1", "send"),
        ("nccl:recv 1<-0", "recv"),
        ("nccl:coalesced", "coalesced"),
    ],
)
def test_names_of_backends_say_which_operation(name, operation):
    assert operation_of(name) == operation


def entry(name, *, inputs, outputs, dtype="Float"):
    return {
        "profiling_name": name,
        "input_sizes": inputs,
        "input_dtypes": [dtype] * len(inputs),
        "output_sizes": outputs,
        "output_dtypes": [dtype] * len(outputs),
    }


def test_size_is_the_full_buffer_of_the_operation():
    gathered = entry("nccl:_all_gather_base", inputs=[[10]], outputs=[[40]])
    scattered = entry("nccl:_reduce_scatter_base", inputs=[[40]], outputs=[[10]])
    several = entry("nccl:all_reduce", inputs=[[2, 5], [3]], outputs=[[2, 5], [3]], dtype="BFloat16")
    assert entry_bytes(gathered, group_size=4) == 160
    assert entry_bytes(scattered, group_size=4) == 160
    assert entry_bytes(several, group_size=4) == 26
    assert entry_bytes(entry("gloo:gather", inputs=[[10]], outputs=[]), group_size=4) == 160


def test_an_unknown_type_makes_the_size_unknown():
    assert entry_bytes(entry("nccl:all_reduce", inputs=[[4]], outputs=[[4]], dtype="Quark"), group_size=2) is None
