"""Transformers: a callback that records `Trainer.train()`.

from stepscope.integrations.transformers import StepscopeCallback

Trainer(model, args, train_dataset=data, callbacks=[StepscopeCallback(out="run", active=5)]).train()
"""

from typing import Any

from stepscope.integrations.loop_recording import LoopRecording, missing

try:
    from transformers import TrainerCallback
except ImportError as e:
    raise missing("transformers", e) from e


class StepscopeCallback(TrainerCallback):  # type: ignore[misc]
    """Records every `train()` of its trainer into a run folder; settings are those of `stepscope.profile`."""

    def __init__(self, **settings: Any) -> None:
        self.recording = LoopRecording(**settings)

    def on_train_begin(self, args: Any, state: Any, control: Any, *, optimizer: Any = None, **seen: Any) -> None:
        """Start recording before the first batch is loaded."""
        inner = getattr(optimizer, "optimizer", optimizer)  # Accelerate wraps it
        self.recording.begin(optimizers=[inner] if inner is not None else [])

    def on_train_end(self, args: Any, state: Any, control: Any, **seen: Any) -> None:
        """Complete the run folder."""
        self.recording.end()
