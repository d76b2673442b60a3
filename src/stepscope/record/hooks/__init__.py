"""Steps and regions found in an unmodified script: one small file per hook, and what they tell.

    data, forward, backward, gradient_sync, optimizer, amp, pipeline, groups    where torch is hooked
    loop       what the training thread is doing; becomes regions of the recorder
    steps      where a step ends and the next begins
    job_notes  model, optimizer, samples and tokens, for run.json

`install.install(config)` puts all of it in; `docs/recording.md` explains the rules.
"""
