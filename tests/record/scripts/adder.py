"""The shape of minGPT's adder: a callback after step 0 generates token by token for thousands of calls."""

import torch
from digests import print_digests  # type: ignore[import-not-found]
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

CALLS, STEPS = 2_000, 24
torch.set_num_threads(1)
torch.manual_seed(0)


class Block(torch.nn.Module):
    """Attention and a small MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        self.mlp = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return x + self.mlp(x)


model = torch.nn.Sequential(torch.nn.Embedding(10, 8), Block(), torch.nn.Linear(8, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
digits = TensorDataset(torch.randint(10, (64, 7)))
batches = iter(DataLoader(digits, sampler=RandomSampler(digits, replacement=True, num_samples=10_000), batch_size=4))


@torch.no_grad()
def evaluate() -> int:
    """Generate, as `eval_split` of the adder does for both splits."""
    model.eval()
    ids = torch.randint(10, (2, 4))
    for _ in range(CALLS):
        ids = torch.cat([ids[:, 1:], model(ids)[:, -1].argmax(-1, keepdim=True)], 1)
    model.train()
    return int(ids.sum())


for step in range(STEPS):
    (x,) = next(batches)
    logits = model(x[:, :-1])
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten())
    model.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print(step, loss.item().hex())
    if step in (0, 12):
        print("sum", evaluate())
print_digests(model, optimizer)
