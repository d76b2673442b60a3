"""The shape of the word language model example: truncated backpropagation, SGD by hand, the best model saved whole."""

import tempfile
from pathlib import Path

import torch
from digests import print_digests  # type: ignore[import-not-found]

torch.set_num_threads(1)
torch.manual_seed(0)
FILE = Path(tempfile.mkdtemp()) / "model.pt"


class RNNModel(torch.nn.Module):
    """Encoder, LSTM and decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.rnn = torch.nn.Embedding(20, 8), torch.nn.LSTM(8, 8, 2)
        self.decoder = torch.nn.Linear(8, 20)

    def forward(
        self, x: torch.Tensor, hidden: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        output, hidden = self.rnn(self.encoder(x), hidden)
        return torch.nn.functional.log_softmax(self.decoder(output).flatten(0, 1), dim=1), hidden


model, criterion = RNNModel(), torch.nn.NLLLoss()
data, held_out = torch.randint(20, (49, 4)), torch.randint(20, (13, 4))


def evaluate() -> float:
    """Return the loss of the text held out."""
    model.eval()
    total, hidden = 0.0, (torch.zeros(2, 4, 8), torch.zeros(2, 4, 8))
    with torch.no_grad():
        for i in range(0, 12, 4):
            output, hidden = model(held_out[i : i + 4], hidden)
            total += criterion(output, held_out[i + 1 : i + 5].flatten()).item()
    return total


trained, best = model, None
for _ in range(3):
    model.train()
    hidden: tuple[torch.Tensor, ...] = (torch.zeros(2, 4, 8), torch.zeros(2, 4, 8))
    for i in range(0, 48, 4):
        model.zero_grad()
        hidden = tuple(h.detach() for h in hidden)
        output, hidden = model(data[i : i + 4], hidden)
        loss = criterion(output, data[i + 1 : i + 5].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for p in model.parameters():
            assert p.grad is not None
            p.data.add_(p.grad, alpha=-0.5)
        print(i, loss.item().hex())
    found = evaluate()
    if best is None or found < best:
        torch.save(model, FILE)
        best = found
with torch.serialization.safe_globals(
    [RNNModel, torch.nn.Embedding, torch.nn.LSTM, torch.nn.Linear, torch.nn.modules.rnn.LSTM, set]
):
    model = torch.load(FILE)  # only weights and these classes: anything of ours in the file would be refused
model.rnn.flatten_parameters()
print("end", evaluate().hex())
print_digests(trained)
