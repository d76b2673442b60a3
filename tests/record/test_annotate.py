import json

import torch
from torch import nn

from stepscope.record.annotate import annotate_modules


class Block(nn.Module):
    """In-place operations, a buffer, a shared layer and a keyword argument: what hooks tend to break."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = self.first
        self.norm = nn.BatchNorm1d(6)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x, *, scale=1.0):
        return self.act(self.norm(self.second(self.first(x)))) * scale + x


def model():
    torch.manual_seed(0)
    return nn.Sequential(Block(), nn.Dropout(0.5), Block())


def trained(m, steps=3):
    torch.manual_seed(1)
    optimizer = torch.optim.Adam(m.parameters())
    losses = []
    for _ in range(steps):
        loss = m(torch.randn(4, 6)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [p.grad.clone() for p in m.parameters()], {k: v.clone() for k, v in m.state_dict().items()}


def test_losses_gradients_parameters_and_keys_are_exactly_the_same():
    plain, annotated = model(), model()
    annotate_modules(annotated)
    losses, gradients, state = trained(plain)
    also_losses, also_gradients, also_state = trained(annotated)
    assert losses == also_losses
    assert all(torch.equal(a, b) for a, b in zip(gradients, also_gradients, strict=True))
    assert list(state) == list(also_state)
    assert all(torch.equal(state[k], also_state[k]) for k in state)


def test_results_are_the_same_under_a_profiler_and_every_module_has_its_range(tmp_path):
    plain, annotated = model(), model()
    losses, _, _ = trained(plain)
    with annotate_modules(annotated), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as prof:
        also_losses, _, _ = trained(annotated)
    assert losses == also_losses
    prof.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    ranges = [e["name"] for e in events if e.get("cat") == "user_annotation" and e["name"].startswith("module: ")]
    counts = {name: ranges.count(name) for name in set(ranges)}
    assert counts["module: Sequential"] == 3
    assert counts["module: 0.first"] == 6  # a shared layer runs twice
    assert counts["module: 2.norm"] == 3
    assert set(counts) == {f"module: {name or 'Sequential'}" for name, _ in annotated.named_modules()}
