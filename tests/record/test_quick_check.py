import copy
import random

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stepscope.errors import UsageError
from stepscope.record.quick_check import quick_check


class Clock:
    """A clock that moves only when told to, so that phases have exact times."""

    def __init__(self, monkeypatch):
        self.now = 0
        monkeypatch.setattr("stepscope.record.quick_check.time.perf_counter_ns", lambda: self.now)

    def pass_ms(self, ms):
        self.now += round(ms * 1e6)


class Slow(nn.Module):
    """Forward, backward and optimizer take known times on the injected clock."""

    def __init__(self, clock, *, forward_ms, backward_ms):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.clock, self.forward_ms, self.backward_ms = clock, forward_ms, backward_ms

    def forward(self, x):
        self.clock.pass_ms(self.forward_ms)
        y = x * self.weight
        y.register_hook(lambda grad: self.clock.pass_ms(self.backward_ms))
        return y


class SlowSGD(torch.optim.SGD):
    def __init__(self, parameters, clock, ms):
        super().__init__(parameters, lr=0.1)
        self.clock, self.ms = clock, ms

    def step(self, closure=None):
        self.clock.pass_ms(self.ms)
        return super().step(closure)


class SlowLoader:
    def __init__(self, clock, *, first_ms, ms, batches=4):
        self.clock, self.first_ms, self.ms, self.batches = clock, first_ms, ms, batches

    def __iter__(self):
        for number in range(self.batches):
            self.clock.pass_ms(self.first_ms if number == 0 else self.ms)
            yield torch.ones(2, 3), torch.zeros(2, 3)


def known_job(monkeypatch, *, loading_ms=8.0):
    clock = Clock(monkeypatch)
    model = Slow(clock, forward_ms=35, backward_ms=47)
    return model, SlowLoader(clock, first_ms=500, ms=loading_ms), nn.MSELoss(), SlowSGD(model.parameters(), clock, 10)


def test_each_phase_has_its_own_time_and_worker_start_is_left_out(monkeypatch):
    found = quick_check(*known_job(monkeypatch), steps=10)
    assert [(p.name, round(p.ms, 6)) for p in found.phases] == [
        ("data loading", 8.0),
        ("forward", 35.0),
        ("backward", 47.0),
        ("optimizer step", 10.0),
    ]
    assert [p.verdict for p in found.phases] == ["as expected"] * 4
    assert found.step_ms == 100


def test_a_phase_above_its_share_is_named_with_what_to_look_at(monkeypatch):
    found = quick_check(*known_job(monkeypatch, loading_ms=100))
    text = str(found)
    assert found.phases[0].verdict == "above"
    assert "52.1%" in text
    assert "data loading takes more than its share; check: more loader workers" in text


def test_nothing_is_left_changed():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1)).to(torch.float32)
    model[2].eval()
    optimizer = torch.optim.Adam(model.parameters())
    data = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
    loader = DataLoader(data, batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(1))
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    gradients = [p.grad for p in model.parameters()]
    kept = [g.clone() for g in gradients]
    identities = [id(t) for state in optimizer.state.values() for t in state.values()]
    modes = [m.training for m in model.modules()]
    draws = (torch.get_rng_state(), random.getstate(), loader.generator.get_state())

    quick_check(model, loader, nn.MSELoss(), optimizer, steps=3, warmup=1)

    same(before, (model.state_dict(), optimizer.state_dict()))
    assert all(p.grad is g for p, g in zip(model.parameters(), gradients, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(gradients, kept, strict=True))
    assert [id(t) for state in optimizer.state.values() for t in state.values()] == identities
    assert [m.training for m in model.modules()] == modes
    assert torch.equal(draws[0], torch.get_rng_state())
    assert draws[1] == random.getstate()
    assert torch.equal(draws[2], loader.generator.get_state())


def test_state_is_restored_when_the_users_code_fails():
    model = nn.Linear(2, 1)
    weight = model.weight.detach().clone()
    calls = []

    def loss(output, target):
        calls.append(1)
        if len(calls) == 3:
            raise ValueError("the loss's own error")
        return (output - target).square().mean()

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="the loss's own error"):
        quick_check(model, [(torch.ones(2, 2), torch.ones(2, 1))], loss, optimizer)
    assert torch.equal(model.weight, weight)


@pytest.mark.parametrize(
    ("loader", "said"), [([], "the loader has no batch"), ([torch.ones(2, 2)], "not Tensor; or give forward=")]
)
def test_wrong_input_is_one_clear_line(loader, said):
    model = nn.Linear(2, 1)
    with pytest.raises(UsageError, match=said):
        quick_check(model, loader, nn.MSELoss(), torch.optim.SGD(model.parameters()))


def same(a, b):
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for k in a:
            same(a[k], b[k])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
    else:
        assert a == b
