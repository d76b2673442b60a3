"""Experts and latent attention: each token gets its experts, load evens out, positions are relative."""

import pytest

torch = pytest.importorskip("torch")

from stepscope.bench.workloads.experts import Experts, imbalance, rebalance  # noqa: E402
from stepscope.bench.workloads.latent_attention import rotary_angles, rotated  # noqa: E402


def experts(**changes: int) -> Experts:
    torch.manual_seed(0)
    return Experts(16, **{"width": 8, "routed": 6, "per_token": 2, "shared": 1, **changes})


def test_output_is_the_weighted_sum_of_each_tokens_experts() -> None:
    layer, x = experts(), torch.randn(2, 5, 16)
    chosen, weights = layer.route(x.flatten(0, 1))
    expected = torch.stack(
        [
            sum(w * layer.experts[e](token) for e, w in zip(es.tolist(), ws, strict=True))
            for token, es, ws in zip(x.flatten(0, 1), chosen, weights, strict=True)
        ]
    )
    assert layer.shared is not None
    assert torch.allclose(layer(x), expected.view_as(x) + layer.shared(x), atol=1e-6)


def test_bias_chooses_experts_but_does_not_weigh_them() -> None:
    layer, tokens = experts(routed=4, per_token=1), torch.randn(50, 16)
    layer.bias[2] = 10.0
    chosen, weights = layer.route(tokens)
    assert (chosen == 2).all()
    assert torch.allclose(weights, torch.ones_like(weights))
    assert not layer.bias.requires_grad


def test_bias_updates_even_out_a_skewed_router() -> None:
    layer, tokens = experts(), torch.randn(400, 16) + 1.0
    with torch.no_grad():
        layer.router.weight[0] += 0.3
    imbalances = []
    for _ in range(150):
        layer.load.zero_()
        layer.route(tokens)
        imbalances.append(imbalance(layer.load))
        rebalance([layer], rate=0.01)
    assert imbalances[0] > 0.8
    assert max(imbalances[-10:]) < 0.25 * imbalances[0]


def test_evaluation_counts_no_load() -> None:
    layer = experts().eval()
    layer(torch.randn(1, 4, 16))
    assert not layer.load.any()


def test_rotation_keeps_lengths_and_makes_products_relative() -> None:
    angles = rotary_angles(12, 8, device=torch.device("cpu"))
    q, k = torch.randn(8), torch.randn(8)
    at = lambda x: rotated(x.expand(12, 8), angles)  # noqa: E731
    products = at(q) @ at(k).T
    assert torch.allclose(at(q).norm(dim=-1), q.norm().expand(12), atol=1e-5)
    assert all(torch.allclose(products.diagonal(d), products[0, d].expand(12 - d), atol=1e-4) for d in range(12))
