"""A rank's device: refused where ranks outnumber devices, unless they may share."""

import os

import pytest

torch = pytest.importorskip("torch")

from stepscope.bench.session import rank  # noqa: E402
from stepscope.errors import UsageError  # noqa: E402


@pytest.fixture(autouse=True)
def one_device_and_four_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    for name, value in {"RANK": "3", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    for name in ("NCCL_HOSTID", "NCCL_SOCKET_IFNAME", "NCCL_IB_DISABLE"):
        monkeypatch.setenv(name, "")


def test_too_few_devices_are_refused_with_the_remedy() -> None:
    with pytest.raises(
        UsageError, match=r"4 NCCL ranks need 4 devices, and there are 1; use --world-size 1, or --share"
    ):
        rank._device("nccl", share=False)


def test_ranks_that_share_look_like_hosts_of_their_own() -> None:
    assert rank._device("nccl", share=True) == torch.device("cuda", 0)
    assert os.environ["NCCL_HOSTID"] == "rank3"


def test_gloo_needs_no_device() -> None:
    assert rank._device("gloo", share=False) == torch.device("cpu")
