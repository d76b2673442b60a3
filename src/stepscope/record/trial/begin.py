"""Put a trial into this process: settings, seeds, and the results that its recorder will write."""

from typing import Any

from stepscope.record.config import RecordConfig
from stepscope.record.hooks.install import Hooks
from stepscope.record.hooks.patches import Patches
from stepscope.record.trial.results import TrialResults
from stepscope.record.trial.seeds import set_seeds
from stepscope.record.trial.settings import Settings


def only_set(config: RecordConfig) -> None:
    """Put the settings into a job that is not recorded."""
    settings = Settings(config.settings)
    settings.apply(Patches())
    settings.set_switches()


def begin_trial(config: RecordConfig, hooks: Hooks) -> TrialResults:
    """Return the sampler of a trial whose settings are in place."""
    set_seeds()
    settings = Settings(config.settings)
    settings.apply(hooks.patches)
    results = TrialResults(settings, optimizer=hooks.loop.optimizers.main, model=hooks.learned.model)
    results.install(hooks.patches)

    def after_first_step(loop: Any) -> None:
        if loop.steps == 1:
            settings.set_switches()
            settings.compile(hooks.learned.model())

    hooks.loop.on_first_steps.append(after_first_step)
    return results
