"""The shape of the ImageNet example: workers, evaluation and a checkpoint in every epoch."""

import shutil
import tempfile
from pathlib import Path

import torch
from digests import print_digests  # type: ignore[import-not-found]
from torch.utils.data import DataLoader, Dataset

FOLDER = Path(tempfile.mkdtemp())


class Images(Dataset):
    """Random images, made in the workers."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(index)), index % 4


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 4)
    )
    criterion = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
    train = DataLoader(Images(32), batch_size=4, shuffle=True, num_workers=2)
    held_out = DataLoader(Images(16), batch_size=4, num_workers=2)
    for epoch in range(3):
        model.train()
        for images, target in train:
            loss = criterion(model(images), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(epoch, loss.item().hex())
        model.eval()
        with torch.no_grad():
            print("held out", sum(criterion(model(images), target).item() for images, target in held_out).hex())
        scheduler.step()
        torch.save({"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, FOLDER / "c.pt")
        shutil.copyfile(FOLDER / "c.pt", FOLDER / "best.pt")
    print_digests(model, optimizer)
