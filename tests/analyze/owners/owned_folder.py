"""A run folder of one or two ranks whose lines have known costs, with the source kept beside it.

per step of 1000 us     host us (without gaps)   device us     called from
train.py:10             forward, 100             100           model.py:3, module blocks.0.up
train.py:11             backward, on the engine  50            train.py:10 > model.py:3 caused it
train.py:12             statistic, 100           30
train.py:9              all the other Python
"""

from pathlib import Path

from tests.analyze.build import AUTOGRAD, built_run
from tests.analyze.owners.planted import PlantedRank

from stepscope.contract.run_folder import SOURCE_FOLDER
from stepscope.run.load import Run

STEP = 1000.0
STEPS = 4
SOURCES = {
    "train.py": "#\n" * 8 + "for x in data:\n    loss = net(x)\n    loss.backward()\n    stat(net)\n",
    "model.py": "class Net:\n    def forward(self, x):\n        return self.up(x)\n",
}


def owned_folder(
    folder: Path, *, ranks: int = 1, sources: dict[str, str] | None = None, late_us: float = 0.0, file: str = "train.py"
) -> Run:
    """Return the run; its last rank's forward takes `late_us` longer on the device."""
    folder.mkdir(exist_ok=True)
    traces = []
    for rank in range(ranks):
        r = PlantedRank(rank)
        for n in range(STEPS + 1):
            _a_step(r, n, late_us=late_us if rank == ranks - 1 else 0.0, file=file)
        r.write_owners(folder, (STEPS * STEP, (STEPS + 1) * STEP))
        r.events = [e for e in r.events if e["ts"] < r._local_ns(STEPS * STEP) / 1000]
        traces.append(r)
    for name, text in (SOURCES if sources is None else sources).items():
        (folder / SOURCE_FOLDER).mkdir(exist_ok=True)
        (folder / SOURCE_FOLDER / name).write_text(text)
    return built_run(folder, traces)


def _a_step(r: PlantedRank, n: int, *, late_us: float, file: str) -> None:
    at, number = n * STEP, 100 * n
    r.step(n, at, at + STEP)
    r.python_time(at, at + 10, f"{file}:9")
    with (
        r.line(f"{file}:9", f"{file}:10", "model.py:3", module="blocks.0.up"),
        r.op("aten::linear", at + 10, at + 110, **{"Sequence number": number}),
    ):
        r.kernel("gemm", at=at + 30, start=at + 60, end=at + 160 + late_us)
    args = {"Sequence number": number, "Fwd thread id": 1}
    with (
        r.line(f"{file}:9", f"{file}:11"),
        r.op("autograd::engine::evaluate_function: MmBackward0", at + 300, at + 390, thread=AUTOGRAD, **args),
        r.op("MmBackward0", at + 305, at + 380, thread=AUTOGRAD, **args),
    ):
        r.kernel("grad", at=at + 320, start=at + 430, end=at + 480, thread=AUTOGRAD)
    r.python_time(at + 110, at + 500, f"{file}:9", f"{file}:11")
    with r.line(f"{file}:9", f"{file}:12"), r.op("aten::std", at + 600, at + 700):
        r.kernel("std", at=at + 650, start=at + 660, end=at + 690)
    r.python_time(at + 700, at + STEP, f"{file}:9")
