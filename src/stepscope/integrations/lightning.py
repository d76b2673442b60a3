"""Lightning: a callback that records `Trainer.fit()`, from `lightning` or `pytorch_lightning`.

    from stepscope.integrations.lightning import StepscopeCallback

    Trainer(callbacks=[StepscopeCallback(out="run", active=5)], max_steps=100).fit(module, loader)

Lightning runs forward and backward inside `optimizer.step(closure)`; what the optimizer itself takes is
`optimizer_step`, the rest has its own regions.
"""

import sys
from importlib import import_module
from typing import Any

from stepscope.integrations.loop_recording import LoopRecording, missing


def _callback_class() -> Any:
    names = ["lightning.pytorch", "pytorch_lightning"]
    names.sort(key=lambda name: name not in sys.modules)
    for name in names:
        try:
            return import_module(name).Callback
        except ImportError as e:
            error = e
    raise missing("lightning", error) from error


class StepscopeCallback(_callback_class()):  # type: ignore[misc]
    """Records every `fit()` of its trainer into a run folder; settings are those of `stepscope.profile`."""

    def __init__(self, **settings: Any) -> None:
        self.recording = LoopRecording(**settings)

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Begin after the sanity check, before the first batch."""
        self.recording.begin(optimizers=trainer.optimizers)

    def on_train_end(self, trainer: Any, module: Any) -> None:
        """Complete the run folder."""
        self.recording.end()

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        """Complete the run folder of a training that failed."""
        self.recording.end()
