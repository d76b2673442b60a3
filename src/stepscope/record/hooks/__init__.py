"""Steps and regions found in an unmodified script: one small file per hook, and what they tell.

    data, forward, backward, gradient_sync, optimizer, amp, pipeline, groups    where torch is hooked
    loop/    what the training thread is doing: regions of the recorder, ends of steps, facts for run.json

`install.install(config)` puts all of it in; `docs/recording.md` explains the rules.
"""
