import pickle

import torch

from stepscope.record.memory import MemoryHistory


class Memory:
    """torch.cuda.memory as far as the history needs it."""

    def __init__(self, *, broken=False):
        self.calls = []
        self.broken = broken

    def _record_memory_history(self, **arguments):
        self.calls.append(arguments)

    def _snapshot(self):
        if self.broken:
            raise RuntimeError("out of host memory")
        return {"segments": [], "device_traces": [[{"action": "alloc", "addr": 1, "size": 512}]]}


def pretend_cuda(monkeypatch, *, history=False):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch._C, "_cuda_isHistoryEnabled", lambda: history, raising=False)


def test_history_of_the_window_becomes_a_snapshot_file(tmp_path, monkeypatch):
    pretend_cuda(monkeypatch)
    memory = Memory()
    history = MemoryHistory(memory=memory, max_entries=7)
    history.on_window_start()
    history.on_window_end()
    history.on_close(tmp_path, 0)
    assert [p.name for p in tmp_path.iterdir()] == ["rank00000.memory.pickle"]
    found = pickle.loads((tmp_path / "rank00000.memory.pickle").read_bytes())
    assert found["device_traces"][0][0]["size"] == 512
    assert memory.calls[0]["max_entries"] == 7
    assert memory.calls[-1] == {"enabled": None}


def test_the_jobs_own_history_is_left_alone(tmp_path, monkeypatch, capsys):
    pretend_cuda(monkeypatch, history=True)
    memory = Memory()
    history = MemoryHistory(memory=memory)
    history.on_window_start()
    history.on_window_end()
    history.on_close(tmp_path, 0)
    assert memory.calls == []
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().err.count("a memory history of its own") == 1
