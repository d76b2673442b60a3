"""Settings put in from outside: into constructors and switches of torch, only where the script left them free."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from stepscope.contract.live import TRIAL  # noqa: E402
from stepscope.contract.run_folder import rank_file  # noqa: E402
from stepscope.record.hooks.patches import Patches  # noqa: E402
from stepscope.record.trial import (  # noqa: E402
    Settings,
    TrialResults,
)


@pytest.fixture
def patches() -> Iterator[Patches]:
    made = Patches()
    yield made
    made.undo()


DATA = TensorDataset(torch.zeros(8, 2))


def test_loader_gets_workers_and_what_needs_them(patches: Patches) -> None:
    wanted = {"loader.num_workers": 2, "loader.persistent_workers": True, "loader.prefetch_factor": 3}
    settings = Settings(wanted)
    settings.apply(patches)
    loader = DataLoader(DATA, 4)
    assert (loader.num_workers, loader.persistent_workers, loader.prefetch_factor, loader.batch_size) == (2, True, 3, 4)
    assert set(settings.took) == set(wanted)
    assert settings.loaders[0]["num_workers"] == 0


@pytest.mark.parametrize(
    ("options", "fused"),
    [({}, True), ({"foreach": True}, None), ({"fused": False}, False), ({"capturable": True}, None)],
)
def test_optimizer_is_fused_where_the_script_did_not_choose(
    patches: Patches, options: dict, fused: bool | None
) -> None:
    settings = Settings({"optimizer.fused": True})
    settings.apply(patches)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters(), 0.1, **options)  # a generator, which is read once
    assert optimizer.param_groups[0]["fused"] is fused and len(optimizer.param_groups[0]["params"]) == 2
    assert bool(settings.took) == (fused is True)


def test_switches_are_set_again_after_the_script_set_them(patches: Patches) -> None:
    before = torch.backends.cudnn.benchmark
    settings = Settings({"cudnn.benchmark": True})
    settings.apply(patches)
    torch.backends.cudnn.benchmark = False
    settings.set_switches()
    assert torch.backends.cudnn.benchmark is True and settings.took == ["cudnn.benchmark"]
    torch.backends.cudnn.benchmark = before


def test_losses_are_kept_and_a_trial_writes_what_it_computed(patches: Patches, tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.constant_(model.weight, 2.0)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    results = TrialResults(Settings({}), optimizer=lambda: optimizer, model=lambda: model)
    results.install(patches)
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    model(torch.ones(1, 2)).expand(1, 2).backward(torch.ones(1, 2))  # no loss: more than one element
    torch.tensor(float("inf"), requires_grad=True).backward()
    results.on_close(tmp_path, 3)
    found = json.loads((tmp_path / rank_file(3, TRIAL)).read_text())
    assert found["losses"] == [4.0, 3.0, None]
    assert found["parameters"] == {"sum": 2.0, "size": 2.0}
    assert found["optimizer"]["name"] == "SGD" and found["convolutions"] is False
