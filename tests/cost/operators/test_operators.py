import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from stepscope.cost.kernel_names import Family
from stepscope.cost.operators import operator_cost

RECORDED = json.loads(gzip.decompress((Path(__file__).parents[2] / "data/cost/recorded_steps.json.gz").read_bytes()))

BF16, FLOAT, LONG, SCALAR = "c10::BFloat16", "float", "long int", "Scalar"


def cost(name, *inputs, concrete=None, **known):
    """Return the cost for inputs given as (shape, type); None is an input that is no tensor."""
    dims = json.dumps([[] if one is None else one[0] for one in inputs])
    types = json.dumps(["" if one is None else one[1] for one in inputs])
    return operator_cost(name, dims=dims, types=types, concrete=json.dumps(concrete), **known)


def work(found):
    return (found.family, found.flops, found.read_bytes, found.write_bytes)


def test_matrix_products_by_hand():
    assert work(cost("aten::mm", ([8, 4], BF16), ([4, 2], BF16))) == (Family.GEMM, 128, 80, 32)
    assert work(cost("aten::addmm", ([2], FLOAT), ([8, 4], FLOAT), ([4, 2], FLOAT))) == (Family.GEMM, 128, 168, 64)
    assert work(cost("aten::bmm", ([3, 8, 4], FLOAT), ([3, 4, 2], FLOAT))) == (Family.GEMM, 384, 480, 192)
    assert work(cost("aten::mv", ([8, 4], FLOAT), ([4], FLOAT))) == (Family.GEMM, 64, 144, 32)
    assert cost("aten::mm", ([8, 4], BF16), ([4, 2], BF16)).dtype == "bf16"


def test_eight_bit_product_writes_sixteen_bits_unless_its_output_type_is_recorded():
    fp8 = "c10::Float8_e4m3fn"
    inputs: Any = (([16, 32], fp8), ([32, 8], fp8), ([], FLOAT), ([], FLOAT), None, None, None)
    assert work(cost("aten::_scaled_mm", *inputs)) == (Family.GEMM, 8192, 768, 256)
    recorded = ["", "", "", "", "", "", "6"]
    assert cost("aten::_scaled_mm", *inputs, concrete=recorded).write_bytes == 512
    assert cost("aten::_scaled_mm", *inputs).dtype == "fp8"


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("aten::_scaled_dot_product_flash_attention", [2, 4, 16, 8]),
        ("aten::_scaled_dot_product_efficient_attention", [2, 4, 16, 8]),
        ("aten::_cudnn_attention_forward", [2, 4, 16, 8]),
        ("aten::_flash_attention_forward", [2, 16, 4, 8]),
        ("aten::_efficient_attention_forward", [2, 16, 4, 8]),
        ("flash_attn::_flash_attn_forward", [2, 16, 4, 8]),
    ],
)
def test_attention_forward_counts_all_pairs_in_either_layout(name, shape):
    found = cost(name, *[(shape, BF16)] * 3)
    assert work(found) == (Family.ATTENTION, 2 * 2 * 4 * 16 * 16 * (8 + 8), 3 * 2048, 2048)


def test_attention_backward_is_twice_forward_and_repeats_the_scores():
    shape = ([2, 4, 16, 8], BF16)
    found = cost("aten::_scaled_dot_product_cudnn_attention_backward", *[shape] * 4)
    forward = 2 * 2 * 4 * 16 * 16 * 16
    assert (found.flops, found.recomputed_flops, found.hardware_flops) == (2 * forward, forward // 2, 2.5 * forward)


def test_packed_sequences_give_a_lower_bound():
    tokens, offsets = ([64, 4, 8], BF16), ([5], "int")
    found = cost("aten::_flash_attention_forward", tokens, tokens, tokens, offsets, offsets)
    assert found.lower_bound
    assert found.flops == 4 * (2 * 4 * 16 * 16 * 16)  # four sequences of 16
    assert cost("aten::_flash_attention_forward", tokens, tokens, tokens) is None


def test_convolution_by_hand():
    inputs = (([2, 4, 16, 16], FLOAT), ([8, 4, 3, 3], FLOAT), ([8], FLOAT), *[None] * 6)
    values = ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]
    found = cost("aten::convolution", *inputs, concrete=values)
    assert work(found) == (Family.CONVOLUTION, 2 * 2 * 8 * 8 * 8 * 4 * 9, 4 * (2048 + 288), 4 * 2 * 8 * 8 * 8)
    assert cost("aten::convolution", *inputs) is None, "without stride and padding the output is unknown"


def test_convolution_backward_needs_no_stride_and_respects_its_mask():
    inputs = (([2, 8, 8, 8], FLOAT), ([2, 4, 16, 16], FLOAT), ([8, 4, 3, 3], FLOAT), *[None] * 8)
    forward = 2 * 2 * 8 * 8 * 8 * 4 * 9
    assert cost("aten::convolution_backward", *inputs).flops == 2 * forward
    first_layer = ["", "", "", "[8]", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", "[False, True, True]"]
    assert cost("aten::convolution_backward", *inputs, concrete=first_layer).flops == forward


def test_traffic_of_operators_without_products():
    x = ([4, 8], BF16)
    assert work(cost("aten::gelu", x, None)) == (Family.ELEMENTWISE, 0, 64, 64)
    assert work(cost("aten::add", ([4, 8], FLOAT), ([8], BF16), None)) == (Family.ELEMENTWISE, 0, 144, 128)
    assert work(cost("aten::mul", ([4, 8], FLOAT), ([], "double"), ([4, 8], FLOAT))) == (
        Family.ELEMENTWISE,
        0,
        136,
        128,
    )
    assert work(cost("aten::eq", ([4, 8], FLOAT), ([4, 8], FLOAT))) == (Family.ELEMENTWISE, 0, 256, 32)
    assert work(cost("aten::copy_", ([4, 8], BF16), ([4, 8], FLOAT), None)) == (Family.COPY, 0, 128, 64)
    assert work(cost("aten::fill_", x, None)) == (Family.COPY, 0, 0, 64)
    assert work(cost("aten::sum", x, None)) == (Family.REDUCTION, 0, 64, 0)
    norm = cost("aten::native_layer_norm", ([4, 8], FLOAT), None, ([8], FLOAT), ([8], FLOAT), None)
    assert work(norm) == (Family.NORMALISATION, 0, 192, 128)
    assert work(cost("aten::embedding", ([100, 8], FLOAT), ([2, 3], LONG), None)) == (
        Family.EMBEDDING,
        0,
        6 * 32 + 48,
        6 * 32,
    )


def test_lists_of_tensors_have_no_cost():
    assert cost("aten::_fused_adamw_", *[([], "TensorList")] * 6) is None


@pytest.mark.parametrize("name", ["aten::linear", "aten::matmul", "aten::scaled_dot_product_attention", "aten::to"])
def test_composites_have_no_cost(name):
    assert cost(name, ([8, 4], FLOAT), ([4, 4], FLOAT)) is None


@pytest.mark.parametrize("dims", [None, "", "null", "{}", "[[8, 4]", "[[8, -4], [4, 2]]", "[[8, 4]]", '[["a"], [1]]'])
def test_bad_texts_are_unknown(dims):
    assert operator_cost("aten::mm", dims=dims, types='["float", "float"]') is None


@pytest.mark.parametrize("case", sorted(RECORDED))
def test_recorded_training_step_has_exactly_the_models_flops(case):
    """One step of a GPT as recorded on an H200; the truth is L (24 H^2 + 4 S H) + 2 V H per token, three times."""
    recorded = RECORDED[case]
    model = repeated = 0
    for row in recorded["operators"]:
        found = operator_cost(row["name"], dims=row["dims"], types=row["types"], concrete=row["concrete"])
        flops = found.flops * row["count"] if found else 0
        repeated += flops * row["recomputed"]
        model += flops * (not row["recomputed"])
    assert model == recorded["model_flops_per_step"]
    assert (repeated > 0) == recorded["config"]["checkpoint"]
    if repeated:
        assert repeated / model == pytest.approx(0.28, abs=0.005)  # every block again, but not the output head
